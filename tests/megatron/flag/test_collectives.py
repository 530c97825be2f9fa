"""Collectives that outlive their members: whoever is dead, and whoever missed one, gets what the whole group gives."""

import weakref
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from harness.examples import paper_job
from recycle.job import Server
from recycle.megatron.flag.world.call_results import Value
from recycle.runtime.errors import ConnectionLost, RunError
from tests.megatron.flag.live_servers import groups_of, in_order, live_ranks, live_servers, small_jobs

pytestmark = pytest.mark.usefixtures("let_go")

JOB = paper_job(pipelines=2, stages=2)
RANKS = in_order(JOB)


@settings(max_examples=8, deadline=None)
@given(small_jobs(), st.sampled_from([(1, 1), (2, 1), (4, 2)]))
def test_whoever_is_dead_a_group_gives_what_the_whole_one_gives(shape, ranks):
    """Groups of one rank of each server, of all, or of every other one, beside which another one has the rest."""
    job, dead = shape
    size, apart = ranks
    alive = [each for each in job.servers() if each not in dead]

    def said(server, number):
        return torch.tensor([2.0 + server.stage, 3.0 + number])

    def work(live):
        results = {}
        for servers in sorted({*groups_of(live.server, job), (live.server,)}, key=live.collectives.kind):
            mine = said(live.server, live.rank.number)
            # A group of one plane may have the same servers.
            for numbers in [tuple(range(live.rank.number % apart, size, apart)), ()][size == 1 :]:
                rows = live.collectives.gather(servers, numbers, mine)
                reduced = [
                    live.collectives.reduce(servers, numbers, mine, how)
                    for how in (ReduceOp.MAX, ReduceOp.MIN, ReduceOp.SUM, ReduceOp.PRODUCT)
                ]
                results[servers, numbers] = rows, reduced
        return results

    groups = {server: [*groups_of(server, job), (server,)] for server in alive}
    for (_, own), results in live_ranks(job, [alive], work, size, groups).items():
        for (servers, numbers), (rows, (greatest, least, total, product)) in results.items():
            members = [(each, number) for each in servers for number in numbers or (own,)]
            whole = torch.stack([said(*each) for each in members])
            assert torch.equal(torch.stack(rows), whole)
            assert torch.equal(greatest, whole.amax(0))
            assert torch.equal(least, whole.amin(0))
            # Over peers, what the dead would have put in was added by others already. Over stages, all count.
            is_pipeline = len({each.pipeline for each in servers}) == 1
            counted = whole[[is_pipeline or each not in dead for each, _ in members]]
            assert torch.equal(total, counted.sum(0))
            # Too large for each digit, so that the order matters.
            assert torch.allclose(product, counted.prod(0), rtol=1e-5)


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
            assert Value.of(one) == Value.of(other)


def test_what_one_server_has_kept_all_find_after_a_failure_until_two_versions_later():
    servers = JOB.servers()

    def work(live):
        if live.server == servers[2]:
            live.collectives.keep("notes", 1, torch.tensor([3]))
        live.recover(None)
        live.collectives.advance(1)
        found = live.collectives.kept("notes", 1).tolist(), live.collectives.kept("notes", 0)
        live.collectives.advance(3)
        return *found, live.collectives.kept("notes", 1)

    assert live_servers(JOB, [servers] * 2, work) == {server: ([3], None, None) for server in servers}


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


def test_a_call_of_the_next_version_is_not_taken_for_one_of_the_last_which_is_forgotten_with_the_one_after():
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
        again = [each.item() for each in results(4, 5, 6)]
        assert all(each() is not None for each in kept)
        live.collectives.advance(2)
        assert not any(each() is not None for each in kept)
        return again

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
            collectives.totals = {Value.of(mine): [known]}
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


def test_while_micro_batches_are_computed_a_group_is_refused_when_one_of_it_is_dead_and_the_view_ends_the_rest(capfd):
    """Servers would call unequally often. Without a death of theirs, nothing is kept of calls that are made again."""
    peers = tuple(Server(pipeline, 1) for pipeline in range(2))
    elsewhere = [each for each in JOB.servers() if each != Server(1, 0)]
    views = [JOB.servers(), elsewhere, [Server(0, 0), peers[0]]]

    def work(live):
        if live.server not in peers:
            return [live.recover(None) for view in views[1:] if live.server in view]
        live.collectives.inside = True
        found = []
        for _ in range(2):
            found += [live.collectives.reduce(peers, (), torch.tensor(3 + live.server.pipeline), ReduceOp.SUM).item()]
            if live.epoch == 0 or live.server == peers[0]:
                live.recover(None)
        if live.server == peers[0]:
            with pytest.raises(RunError, match=r"since a death they compute .*: have the loss function report \[sum"):
                live.collectives.reduce(peers, (), torch.tensor(3), ReduceOp.SUM)
        return found

    found = live_servers(JOB, views, work)
    assert [found[each] for each in peers] == [[7, 7]] * 2
    assert capfd.readouterr().err.count("the death of one of them ends this run; have the loss function") == 1
