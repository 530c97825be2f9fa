"""Collectives that outlive their members: what torch's own give as long as all live, and the same afterwards."""

import os
import weakref
from functools import partial

import msgspec
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import PrefixStore, ReduceOp

from harness.examples import paper_job
from recycle.control.view import ServerRank
from recycle.job import Server
from recycle.megatron.flag.call_results import content_of
from recycle.megatron.flag.collectives import GroupCollectives, hand_over
from recycle.megatron.flag.objects import broadcast_object_list
from recycle.runtime.errors import ConnectionLost, RunError
from recycle.runtime.launch.local import launch
from recycle.runtime.net.process_groups import make_replaceable_groups
from tests.megatron.flag.live_servers import LiveServer, groups_of, in_order, live_ranks, live_servers, small_jobs

JOB = paper_job(pipelines=2, stages=2)
RANKS = in_order(JOB)
BY_RANK = {str(server): rank for rank, server in enumerate(RANKS)}


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
        for group in self.made:
            ranks = dist.get_process_group_ranks(group)
            group.servers = tuple(dict.fromkeys(self.by_rank[rank] for rank in ranks))
            group.numbers = tuple(dict.fromkeys(rank % self._place.size for rank in ranks))
            hand_over(group, GroupCollectives.of(self.live.collectives, group))


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
    heard = {}

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
        member.report(str(len(theirs)).encode())

    launch(len(RANKS), body, lambda rank, content: heard.update({rank: int(content)}))
    assert heard.keys() == set(range(len(RANKS)))
    assert min(heard.values()) > 500


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
    heard = {}

    def body(member):
        process = Process(member)
        process.hand_over()
        for name, call in UNSUPPORTED.items():
            with pytest.raises(RunError, match=rf"^torch.distributed: {name} is not carried through failures; do with"):
                call(torch.zeros(4))
        # All have refused alike, so what follows is not out of step.
        assert all_reduce(ReduceOp.SUM, dist.group.WORLD, torch.ones(1))[0].item() == 4
        member.report(b"refused")

    launch(len(RANKS), body, lambda rank, content: heard.update({rank: content}))
    assert heard == dict.fromkeys(range(len(RANKS)), b"refused")


@pytest.mark.parametrize("victim", range(4))
def test_a_rank_dies_among_calls_and_its_peer_says_what_it_would_have_said(victim):
    """Every server puts in what its peers put in, and a death comes in the middle of the calls."""
    survivors = tuple(each for rank, each in enumerate(RANKS) if rank != victim)
    heard = {}

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
        member.report(msgspec.msgpack.encode(results))

    launch(len(RANKS), body, lambda rank, content: heard.update({RANKS[rank]: msgspec.msgpack.decode(content)}))
    assert set(heard) == set(survivors)
    for server, results in heard.items():
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


# Its sums and products are exact, and gloo would add them up itself.
PUT_IN = torch.tensor([1.0, 3.0])


@settings(max_examples=20, deadline=None)
@given(small_jobs())
def test_whoever_is_dead_a_group_gives_what_the_whole_one_gives(shape):
    job, dead = shape
    alive = [each for each in job.servers() if each not in dead]

    def said(server, tensor):
        return tensor * (server.stage + 2)

    def work(live):
        results = {}
        for servers in sorted(groups_of(live.server, job), key=live.collectives.kind):
            mine = said(live.server, PUT_IN)
            rows = live.collectives.gather(servers, (), mine)
            reduced = [
                live.collectives.reduce(servers, (), mine, how)
                for how in (ReduceOp.MAX, ReduceOp.MIN, ReduceOp.SUM, ReduceOp.PRODUCT)
            ]
            results[servers] = rows, reduced
        return results

    for results in live_servers(job, [alive], work).values():
        for servers, (rows, (greatest, least, total, product)) in results.items():
            whole = torch.stack([said(each, PUT_IN) for each in servers])
            assert torch.equal(torch.stack(rows), whole)
            assert torch.equal(greatest, whole.amax(0))
            assert torch.equal(least, whole.amin(0))
            # Over peers, what the dead would have put in was added by others already. Over stages, all count.
            is_pipeline = len({each.pipeline for each in servers}) == 1
            counted = whole[[is_pipeline or each not in dead for each in servers]]
            assert torch.equal(total, counted.sum(0))
            assert torch.equal(product, counted.prod(0))


@settings(max_examples=10, deadline=None)
@given(small_jobs(), st.sampled_from([(2, 1), (4, 2)]))
def test_a_group_of_several_ranks_of_its_servers_gives_what_the_whole_one_gives(shape, ranks):
    """Of all, or of every other one; then there is another such group with the rest, which does the same."""
    job, dead = shape
    size, apart = ranks
    alive = [each for each in job.servers() if each not in dead]

    def said(server, number):
        return torch.tensor([2.0 + server.stage, 3.0 + number])

    def work(live):
        results = {}
        for servers in sorted({*groups_of(live.server, job), (live.server,)}, key=live.collectives.kind):
            mine = said(live.server, live.rank.number)
            numbers = tuple(range(live.rank.number % apart, size, apart))
            rows = live.collectives.gather(servers, numbers, mine)
            reduced = [
                live.collectives.reduce(servers, numbers, mine, how)
                for how in (ReduceOp.MAX, ReduceOp.MIN, ReduceOp.SUM, ReduceOp.PRODUCT)
            ]
            # A group of one plane may have the same servers.
            plane = live.collectives.gather(servers, (), mine)
            results[servers] = rows, reduced, plane
        return results

    groups = {server: [*groups_of(server, job), (server,)] for server in alive}
    with_own = live_ranks(job, [alive], work, size, groups)
    for (_, own), results in with_own.items():
        for servers, (rows, (greatest, least, total, product), plane) in results.items():
            members = [(each, number) for each in servers for number in range(own % apart, size, apart)]
            whole = torch.stack([said(*each) for each in members])
            assert torch.equal(torch.stack(rows), whole)
            assert torch.equal(torch.stack(plane), torch.stack([said(each, own) for each in servers]))
            assert torch.equal(greatest, whole.amax(0))
            assert torch.equal(least, whole.amin(0))
            is_pipeline = len({each.pipeline for each in servers}) == 1
            counted = whole[[is_pipeline or each not in dead for each, _ in members]]
            assert torch.equal(total, counted.sum(0))
            assert torch.equal(product, counted.prod(0))


def breaks(then):
    """Something that fails in the first view."""
    left = [ConnectionLost("somebody is gone")]

    def act():
        if left:
            raise left.pop()
        return then()

    return act


def refuse():
    raise AssertionError("it is done again though its result is known")


def test_what_one_server_has_completed_all_get_though_they_missed_it():
    kept = [
        torch.tensor([[1.5, float("nan")], [-0.0, float("inf")]], dtype=torch.bfloat16),
        torch.tensor(3, dtype=torch.int64),
        torch.tensor([True, False, True]),
        torch.zeros(0, 4, dtype=torch.float64),
        torch.arange(6.0).reshape(2, 3).t(),
    ]
    servers = JOB.servers()

    def work(live):
        call = live.collectives.call
        completes = live.server == servers[2]
        # Who has completed the first calls notices the failure in the next one.
        missed = (lambda: kept) if completes else breaks(refuse)
        first = [*call("evaluation", missed), *call("world", (lambda: kept[:2]) if completes else refuse)]
        found = [*first, *call("evaluation", breaks(lambda: kept[:1]) if completes else lambda: kept[:1])]
        assert (live.epoch, live.completed) == (1, 3)
        return found

    for found in live_servers(JOB, [servers, servers], work).values():
        for one, other in zip(kept + kept[:2] + kept[:1], found, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert content_of(one) == content_of(other)


def test_what_one_rank_has_completed_with_all_others_the_other_planes_get_as_well():
    servers = JOB.servers()
    known = [torch.tensor([7.0])]

    def work(live):
        call = live.collectives.call
        # Only one rank of one server has come through the call; in the next one it notices the failure.
        completes = (live.server, live.rank.number) == (servers[1], 1)
        first = call("world", (lambda: known) if completes else breaks(refuse), across=True)
        second = call("other", breaks(lambda: [torch.zeros(1)]) if completes else lambda: [torch.zeros(1)])
        # A plane says nothing of its own calls to the others: there, it is made again.
        third = call("third", (lambda: [torch.ones(1)]) if live.rank.number else lambda: [torch.zeros(1)])
        assert live.epoch == 1
        return [each.item() for each in (*first, *second, *third)]

    results = live_ranks(JOB, [servers, servers], work, 2)
    assert results == {(server, number): [7.0, 0.0, number] for server in servers for number in range(2)}


def test_a_call_of_the_next_version_is_not_taken_for_one_of_the_last_which_is_forgotten():
    servers = JOB.servers()

    def work(live):
        def results(*numbers):
            return [
                live.collectives.call(kind, partial(list, [torch.tensor(number)]))[0]
                for kind, number in zip(("evaluation", "evaluation", "other"), numbers, strict=True)
            ]

        first = results(1, 2, 3)
        kept = [weakref.ref(each) for each in first]
        assert [each.item() for each in first] == [1, 2, 3]
        del first
        assert all(each() is not None for each in kept)
        # One of them has not heard yet that all are done, and tells the others what it knows.
        late = live.server == servers[1]
        if not late:
            live.collectives.advance(1)
        live.recover(None)
        if late:
            live.collectives.advance(1)
        assert not any(each() is not None for each in kept)
        return [each.item() for each in results(4, 5, 6)]

    assert live_servers(JOB, [servers] * 2, work) == {server: [4, 5, 6] for server in servers}


def test_a_sum_that_is_known_already_is_taken_by_what_is_put_in_and_only_over_peers():
    servers = JOB.servers()
    known, mine = torch.tensor([7.0]), torch.tensor([0.5])

    def work(live):
        collectives = live.collectives
        peers = tuple(each for each in RANKS if each.stage == live.server.stage)
        pipeline = tuple(each for each in RANKS if each.pipeline == live.server.pipeline)
        knows = live.server.pipeline == 0
        if knows:
            collectives.totals = {content_of(mine): [known]}
        return [
            collectives.reduce(peers, (), mine, ReduceOp.MAX).item(),
            collectives.reduce(pipeline, (), mine, ReduceOp.SUM).item(),
            collectives.reduce(peers, (), torch.tensor([1.5]), ReduceOp.SUM).item(),
            # Nobody may wait for the other one of the stage, which does not come.
            collectives.reduce(peers, (), mine, ReduceOp.SUM).item() if knows else 7.0,
            # It is known once.
            collectives.reduce(peers, (), mine, ReduceOp.SUM).item(),
        ]

    assert live_servers(JOB, [servers], work) == {server: [0.5, 1.0, 3.0, 7.0, 1.0] for server in servers}


def test_whole_numbers_that_gloo_cannot_add_are_no_failure():
    servers = JOB.servers()

    def work(live):
        total = live.collectives.reduce(RANKS, (), torch.tensor([300, -1], dtype=torch.int16), ReduceOp.SUM)
        return total.dtype, total.tolist()

    assert live_servers(JOB, [servers], work) == dict.fromkeys(servers, (torch.int16, [1200, -4]))


def test_groups_that_are_the_same_among_the_living_are_kept_apart():
    job = paper_job(pipelines=3, stages=2)
    pair = (Server(0, 0), Server(1, 1))
    first, second = ((*pair, dead) for dead in (Server(2, 0), Server(2, 1)))
    # Nobody else is in a group, so no group of theirs is in between.
    groups = {server: {first, second} if server in pair else set() for server in job.servers()}

    def work(live):
        if live.server not in pair:
            return None
        mine = torch.tensor([1 + live.server.stage])
        return [live.collectives.reduce(group, (), mine, ReduceOp.SUM).item() for group in (first, second, first)]

    alive = [server for server in job.servers() if server not in (first[-1], second[-1])]
    results = live_servers(job, [alive], work, groups)
    assert [results[server] for server in pair] == [[3, 3, 3]] * 2


def test_a_group_of_some_peers_is_refused_when_nobody_in_it_can_play_a_dead_one():
    job = paper_job(pipelines=3, stages=2)
    some, other = (Server(1, 0), Server(2, 0)), (Server(0, 0), Server(2, 1))
    groups = {server: {group for group in (some, other) if server in group} for server in job.servers()}

    def work(live):
        if live.server == some[0]:
            return [each.item() for each in live.collectives.gather(some, (), torch.tensor(5))]
        if live.server == other[0]:
            with pytest.raises(RunError, match="rank 1 of a group is dead, and so are its peers in it"):
                live.collectives.gather(other, (), torch.tensor(5))
        return None

    alive = [server for server in job.servers() if server not in (some[-1], other[-1])]
    assert live_servers(job, [alive], work, groups)[some[0]] == [5, 5]
