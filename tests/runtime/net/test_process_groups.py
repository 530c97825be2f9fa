"""Process groups whose calls are taken over: torch's own before that, and afterwards whatever the new owner does."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from harness.local import launch
from recycle.job import Server
from recycle.runtime.net.process_groups import METHODS, StubBackend, make_replaceable_groups

SERVERS = (Server(0, 0), Server(1, 0))


def test_a_group_passes_its_calls_on_until_they_are_handed_over():
    def body(member):
        made = make_replaceable_groups()
        store = PrefixStore("torch", member.store())
        dist.init_process_group("gloo", store=store, rank=member.rank, world_size=member.count)
        dist.new_group([0])
        dist.new_group([1])
        (group,) = made
        assert group.servers == ()
        tensor = torch.tensor([1.0 + member.rank])
        dist.all_reduce(tensor)
        assert tensor.item() == 3.0
        calls = []

        def call(name, tensors, options):
            calls.append((name, [each.tolist() for each in tensors], options.reduceOp == dist.ReduceOp.MAX))
            tensors[0].fill_(7.0)

        group.hand_over(SERVERS, call)
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
        work.wait()
        assert work.is_completed()
        assert calls == [("allreduce", [[3.0]], True)]
        assert tensor.item() == 7.0
        assert group.servers == SERVERS

        class Unfinished(dist.Work):
            pass

        def start(name, tensors, partner, tag):
            calls.append((name, partner))
            return Unfinished()

        group.hand_over(SERVERS, start)
        other = 1 - member.rank
        ring = [dist.P2POp(act, tensor, other) for act in (dist.isend, dist.irecv)]
        works = dist.batch_isend_irecv(ring)
        assert calls[1:] == [("send", other), ("recv", other)]
        assert [type(each) for each in works] == [Unfinished] * 2

    launch(2, body)


def test_a_group_of_one_needs_no_backend():
    """Which would have the host wait for what a device computes."""

    def body(member):
        made = make_replaceable_groups()
        dist.init_process_group("gloo", store=member.store(), rank=0, world_size=1)
        assert made == []
        group = dist.group.WORLD
        group._get_backend = None
        given, other, found = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.zeros(2)

        def brings(expected, tensor=found):
            assert torch.equal(tensor, expected)
            found.zero_()

        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
            work = dist.all_reduce(given, op, async_op=True)
            work.wait()
            assert work.is_completed()
        dist.broadcast(given, 0)
        dist.reduce(given, 0)
        dist.barrier()
        brings(torch.tensor([1.0, 2.0]), given)
        dist.all_gather([found], given)
        brings(given)
        dist.all_gather_into_tensor(found, given)
        brings(given)
        dist.reduce_scatter(found, [other])
        brings(other)
        dist.reduce_scatter_tensor(found, given)
        brings(given)
        dist.all_to_all([found], [other])
        brings(other)
        dist.all_to_all_single(found, given, [2], [2])
        brings(given)
        dist.gather(given, [found])
        brings(given)
        dist.scatter(found, [other])
        brings(other)
        objects = [None]
        dist.all_gather_object(objects, "said")
        assert objects == ["said"]

    launch(1, body)


def test_this_torch_has_all_these_methods():
    """What is not here would go to torch's own group, past whoever carries out the calls."""
    group = dist.ProcessGroup
    missing = [name for name in METHODS if not hasattr(group, name)]
    assert missing == []


def test_a_backend_that_is_never_called_takes_whatever_a_release_of_torch_adds():
    """From 2.14 on torch says whether a group is to be made anew one day."""
    made = StubBackend(dist.HashStore(), 3, 8, timedelta(seconds=1), enable_reconfigure=False)
    assert (made.rank(), made.size()) == (0, 1)
