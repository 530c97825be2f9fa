"""Calls of torch.distributed on groups that were handed over: what torch's own give, as long as all live and after."""

import os
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ReduceOp

from harness.examples import paper_job
from harness.local import launch
from harness.ranks import results_of
from recycle.control.membership.view import ServerRank
from recycle.megatron.flag.world.collectives import hand_over, several
from recycle.megatron.flag.world.roles import broadcast_object_list
from recycle.runtime.errors import RunError
from recycle.runtime.net.process_groups import make_replaceable_groups
from tests.megatron.flag.live_servers import LiveServer, groups_of, in_order

pytestmark = pytest.mark.usefixtures("let_go")

JOB = paper_job(pipelines=2, stages=2)
RANKS = in_order(JOB)


class Process:
    """A rank of JOB in a process of its own, with torch's own groups until they are handed over.

    Args:
        member: which process.
        views: the live servers of each.
        size: how many ranks a server has.

    Attributes:
        groups: by their servers, those of the rank's plane; that of all servers has all ranks.
        whole: the same, with all ranks of their servers.
    """

    def __init__(self, member, views=(RANKS,), size=1):
        self._store = member.store()
        self._views = views
        self.rank = member.rank
        self.by_rank = [server for server in RANKS for _ in range(size)]
        self.server = self.by_rank[member.rank]
        self._place = ServerRank(member.rank % size, size)
        made = make_replaceable_groups()
        dist.init_process_group(
            "gloo", store=PrefixStore("torch", member.store()), rank=member.rank, world_size=member.count
        )
        self.groups, self.whole = {}, {}
        for servers in sorted({group for each in RANKS for group in groups_of(each, JOB)}):
            ranks = [rank for rank, each in enumerate(self.by_rank) if each in servers]
            planes = [(self.groups, ranks[number::size]) for number in range(size)]
            for groups, members in [*planes, (self.whole, ranks)] if size > 1 else planes:
                group = dist.new_group(members)
                if self.rank in members:
                    groups[servers] = group
        self.groups[RANKS] = dist.group.WORLD
        self.made = made

    def hand_over(self):
        self.live = LiveServer(
            self.server,
            JOB,
            self._store,
            self._views,
            lambda epoch: self._store.check([f"alarm/{epoch}"]),
            lambda epoch: self._store.set(f"alarm/{epoch}", ""),
            rank=self._place,
        )
        # A rank that goes on earlier may end this view while another one still connects.
        if self._store.add("entered", 1) == len(self.by_rank):
            self._store.set("all have entered", "")
        self._store.wait(["all have entered"])
        for group in self.made:
            ranks = dist.get_process_group_ranks(group)
            group.servers = tuple(dict.fromkeys(self.by_rank[rank] for rank in ranks))
            group.numbers = tuple(dict.fromkeys(rank % self._place.size for rank in ranks))
            hand_over(group, self.live.collectives.carrier(group.servers, several(group.numbers)))


def all_reduce(how, group, tensor):
    dist.all_reduce(tensor, how, group=group)
    return [tensor]


def all_reduce_later(group, tensor):
    dist.all_reduce(tensor, ReduceOp.MAX, group=group, async_op=True).wait()
    return [tensor]


def broadcast(root, group, tensor):
    dist.broadcast(tensor, group=group, group_src=root)
    return [tensor]


def all_gather(group, tensor):
    found = [torch.zeros_like(tensor) for _ in range(group.size())]
    dist.all_gather(found, tensor, group=group)
    return found


def all_gather_single(group, tensor):
    found = torch.zeros(group.size() * tensor.numel(), dtype=tensor.dtype)
    dist.all_gather_single(found, tensor.reshape(-1), group=group)
    return [found]


def gather(root, group, tensor):
    found = [torch.zeros_like(tensor) for _ in range(group.size())] if group.rank() == root else None
    dist.gather(tensor, found, group=group, group_dst=root)
    return found or []


def scatter(root, group, tensor):
    parts = [tensor.clone().fill_(place) for place in range(group.size())] if group.rank() == root else None
    dist.scatter(tensor, parts, group=group, group_src=root)
    return [tensor]


def barrier(group, _):
    dist.barrier(group=group)
    return []


def objects(group, tensor):
    found = [None] * group.size()
    dist.all_gather_object(found, {"rank": dist.get_rank(), "length": "x" * dist.get_rank()}, group=group)
    told = [dist.get_rank(), str(group.rank())]
    dist.broadcast_object_list(told, group=group, group_src=1)
    ours = [dist.get_rank(), str(group.rank())]
    broadcast_object_list(ours, dist.get_global_rank(group, 1), group)
    return [found, told, ours]


def told_by(rank, tensor):
    objects = [tensor]
    broadcast_object_list(objects, rank)
    return objects


ANY_TYPE = {
    **{f"all_reduce {how}": partial(all_reduce, how) for how in (ReduceOp.MAX, ReduceOp.MIN)},
    "all_reduce later": all_reduce_later,
    "all_gather": all_gather,
    "all_gather_single": all_gather_single,
    **{f"broadcast from {root}": partial(broadcast, root) for root in (0, 1)},
    **{f"gather to {root}": partial(gather, root) for root in (0, 1)},
    **{f"scatter from {root}": partial(scatter, root) for root in (0, 1)},
    "barrier": barrier,
    "objects": objects,
}
NUMBERS = {f"all_reduce {how}": partial(all_reduce, how) for how in (ReduceOp.SUM, ReduceOp.PRODUCT)}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TYPES = (torch.bool, torch.int64, torch.uint8, *FLOATS)
SHAPES = ((2, 3), (), (0,), (5,))


def values(rank, shape, dtype, *, whole):
    """What a rank puts in; products of whole numbers are exact in whatever order."""
    generator = torch.Generator().manual_seed(rank)
    if whole or not dtype.is_floating_point:
        return torch.randint(0, 4, shape, generator=generator).to(dtype)
    return torch.rand(shape, generator=generator).to(dtype)


def calls(process):
    """What all calls give, by what is called."""
    results = {}
    for servers, group in sorted(process.groups.items()):
        for dtype in TYPES:
            for shape in SHAPES:
                for name, call in (ANY_TYPE if dtype == torch.bool else ANY_TYPE | NUMBERS).items():
                    # Gloo itself cannot gather nothing.
                    if shape == (0,) and ("gather" in name or "scatter" in name):
                        continue
                    tensor = values(process.rank, shape, dtype, whole="PRODUCT" in name)
                    results[len(servers), str(servers[0]), dtype, shape, name] = call(group, tensor)
    return results


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return one == other


def test_as_long_as_all_live_every_call_gives_what_torchs_own_gives_to_the_bit():
    def body(member):
        process = Process(member)
        theirs = calls(process)
        process.hand_over()
        ours = calls(process)
        assert ours.keys() == theirs.keys()
        for call, found in theirs.items():
            assert len(ours[call]) == len(found), call
            assert all(map(equal, ours[call], found)), (call, ours[call], found)
        assert process.live.epoch == 0
        assert len(theirs) > 500

    launch(len(RANKS), body)


UNSUPPORTED = {
    "send": lambda tensor: dist.send(tensor, (dist.get_rank() + 1) % 4),
    "recv": lambda tensor: dist.recv(tensor, (dist.get_rank() + 1) % 4),
    "reduce": lambda tensor: dist.reduce(tensor, 0),
    "reduce_scatter_single": lambda tensor: dist.reduce_scatter_single(tensor[:1], tensor),
    "reduce_scatter": lambda tensor: dist.reduce_scatter(tensor[:1], list(tensor.split(1))),
    "all_to_all_single": lambda tensor: dist.all_to_all_single(torch.zeros(4), tensor),
    "a reduction by BAND": lambda tensor: dist.all_reduce(tensor, ReduceOp.BAND),
}


def test_what_cannot_be_carried_through_failures_is_refused_by_name():
    def body(member):
        process = Process(member)
        process.hand_over()
        for name, call in UNSUPPORTED.items():
            with pytest.raises(RunError, match=rf"^torch.distributed: {name} is not carried through failures; do with"):
                call(torch.zeros(4))
        # All have refused alike, so what follows is not out of step.
        assert all_reduce(ReduceOp.SUM, dist.group.WORLD, torch.ones(1))[0].item() == 4

    launch(len(RANKS), body)


@pytest.mark.parametrize("victim", range(4))
def test_a_rank_dies_among_calls_and_its_peer_says_what_it_would_have_said(victim):
    """Every server puts in what its peers put in, and a death comes in the middle of the calls."""
    survivors = tuple(each for rank, each in enumerate(RANKS) if rank != victim)

    def body(member):
        process = Process(member, (RANKS, survivors))
        process.hand_over()
        peers, pipeline = (
            process.groups[tuple(each for each in RANKS if each[axis] == process.server[axis])] for axis in (1, 0)
        )
        results = []
        for number in range(4):
            if member.rank == victim and number == 2:
                os._exit(0)
            mine = torch.tensor([number + 10.0 * process.server.stage, 3.0])
            for call in (
                lambda tensor: all_reduce(ReduceOp.MAX, dist.group.WORLD, tensor),
                lambda tensor: all_gather(dist.group.WORLD, tensor),
                lambda tensor: all_reduce(ReduceOp.SUM, pipeline, tensor),
                lambda tensor: broadcast(victim, dist.group.WORLD, tensor),
                lambda tensor: all_gather(peers, tensor),
                lambda tensor: all_reduce(ReduceOp.SUM, peers, tensor),
                lambda tensor: told_by(victim, tensor),
            ):
                results.append(torch.cat(call(mine.clone())).tolist())
        with pytest.raises(RunError, match=f"rank {victim} .*is dead, and nobody else knows what it scatters"):
            scatter(victim, dist.group.WORLD, torch.zeros(2))
        assert process.live.epoch == 1
        return results

    found = {RANKS[rank]: results for rank, results in results_of(len(RANKS), body).items()}
    assert set(found) == set(survivors)
    for server, results in found.items():
        alone = server.stage == RANKS[victim].stage
        for number in range(4):
            stages = [[number + 10.0 * stage, 3.0] for stage in range(2)]
            mine = stages[server.stage]
            # In a sum over peers, only the living count.
            count = 1 if alone and number >= 2 else 2
            assert results[7 * number : 7 * number + 7] == [
                stages[1],
                [*stages[0], *stages[0], *stages[1], *stages[1]],
                [sum(each) for each in zip(*stages, strict=True)],
                stages[RANKS[victim].stage],
                [*mine, *mine],
                [count * each for each in mine],
                stages[RANKS[victim].stage],
            ]
