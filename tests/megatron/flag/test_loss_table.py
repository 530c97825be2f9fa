"""The reports of a batch reach every server of the last stage, wherever they were computed and whoever is dead."""

from itertools import chain
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from harness.examples import paper_job
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.megatron.flag.steps.loss_table import LossTable
from recycle.megatron.flag.world.call_results import Value
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import NetworkOptions
from tests.megatron.flag.live_servers import PATIENCE, dead_sets, in_threads

pytestmark = pytest.mark.usefixtures("let_go")

STEP = 5


def report(micro_batch):
    """What the loss function says; everything is a whole number, so that every sum is exact."""
    number = 10 * micro_batch.home + micro_batch.number
    return {
        "lm loss": torch.tensor([number + 0.5, 1.0]),
        "tokens": torch.tensor(number, dtype=torch.int64),
        "by head": torch.tensor([[number, 1], [2, 3]], dtype=torch.bfloat16),
    }


class Batch(NamedTuple):
    """A batch in which some servers of the last stage are dead.

    Attributes:
        where: the server that computes each micro-batch.
    """

    job: object
    peers: tuple[Server, ...]
    where: dict[MicroBatch, Server]


@st.composite
def batches(draw):
    job = paper_job(pipelines=draw(st.integers(2, 3)), stages=1, micro_batches=draw(st.integers(1, 3)))
    dead = draw(dead_sets(job))
    peers = tuple(server for server in job.servers() if server not in dead)
    micro_batches = [MicroBatch(STEP, *place) for place in places(job)]
    return Batch(job, peers, {each: draw(st.sampled_from(peers)) for each in micro_batches})


def places(job):
    return [(home, number) for home in range(job.pipelines) for number in range(job.micro_batches)]


def exchange(batch, reports=report, means=False):
    """Every server's table after one batch in which each of them computes its own, and then the given one."""
    store = HashStore()

    def work(server):
        table = LossTable(server, batch.job, means=means)
        network = connect(store, View.among(batch.peers), server, NetworkOptions(PATIENCE, PATIENCE))
        first = {MicroBatch(STEP - 1, *place): report(MicroBatch(0, 9, 9)) for place in places(batch.job)}
        mine = {key: each for key, each in first.items() if key.home == server.pipeline}
        table.exchange(network, mine, batch.job.micro_batches)
        computed = {key: reports(key) for key, place in batch.where.items() if place == server}
        table.exchange(network, computed, batch.job.micro_batches)
        return table

    return in_threads(batch.peers, work)


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


@settings(max_examples=20, deadline=None)
@given(batches())
def test_each_server_has_its_pipelines_reports_and_the_first_one_those_of_the_dead_too(batch):
    tables = exchange(batch)
    alive = [server.pipeline for server in batch.peers]
    for server, table in tables.items():
        homes = [server.pipeline]
        if server == batch.peers[0]:
            homes += [home for home in range(batch.job.pipelines) if home not in alive]
        expected = [
            report(MicroBatch(STEP, *place)) for home in homes for place in places(batch.job) if place[0] == home
        ]
        assert [list(row) for row in table.rows] == [list(row) for row in expected]
        assert all(
            same(row[name], values[name]) for row, values in zip(table.rows, expected, strict=True) for name in row
        )
    counted = [place for table in tables.values() for row in table.rows for place in [int(row["tokens"])]]
    assert sorted(counted) == [10 * home + number for home, number in places(batch.job)]


@settings(max_examples=20, deadline=None)
@given(batches())
def test_the_sum_over_the_stage_is_that_of_the_whole_batch_whoever_is_dead(batch):
    for table in exchange(batch).values():
        # As Megatron adds up its own, before it asks for the sum over the stage.
        mine = torch.vstack([row["lm loss"] for row in table.rows]).sum(dim=0)
        whole = torch.vstack([report(each)["lm loss"] for each in batch.where]).sum(dim=0)
        assert same(table.totals[Value.of(mine)][0], whole)


@pytest.mark.parametrize("means", [False, True])
@pytest.mark.parametrize("dead", [(), (Server(1, 0),)])
def test_nothing_is_known_but_what_the_training_code_sums(dead, means):
    job = paper_job(pipelines=3, stages=1, micro_batches=2)
    peers = tuple(server for server in job.servers() if server not in dead)
    owners = [Server(home, 0) if Server(home, 0) in peers else peers[0] for home in range(3)]
    where = {MicroBatch(STEP, home, number): owners[home] for home, number in places(job)}

    # Nothing was counted in the first micro-batch.
    def reports(micro_batch):
        number = float(10 * micro_batch.home + micro_batch.number)
        return {"lm loss": torch.tensor([2 * number, min(2.0, number)]), "single": torch.tensor(0.0)}

    def sums(rows):
        mean = [(loss / count.clamp(min=1)) for loss, count in rows]
        return [rows.sum(dim=0), torch.stack(mean).mean()]

    of_each = [
        sums(torch.stack([reports(each)["lm loss"] for each in where if each.home == home])) for home in (0, 1, 2)
    ]
    whole = [torch.stack(each).sum(dim=0) for each in zip(*of_each, strict=True)]
    for table in exchange(Batch(job, peers, where), reports, means).values():
        mine = sums(torch.stack([row["lm loss"] for row in table.rows]))
        known = {Value.of(own): [total] for own, total in zip(mine[: 1 + means], whole, strict=False)}
        assert table.totals.keys() == known.keys()
        assert all(map(same, chain(*table.totals.values()), chain(*known.values())))


@pytest.mark.parametrize("dead", [(), (Server(1, 0),)])
def test_two_sums_that_begin_with_the_same_are_told_apart_by_their_order(dead):
    job = paper_job(pipelines=3, stages=1, micro_batches=1)
    peers = tuple(server for server in job.servers() if server not in dead)
    where = {MicroBatch(STEP, home, 0): Server(home, 0) if Server(home, 0) in peers else peers[0] for home in range(3)}

    def reports(micro_batch):
        same_on_the_last = [7.0, 1.0]
        other = same_on_the_last if micro_batch.home == 2 else [1.0, 1.0]
        return {"first": torch.tensor(same_on_the_last), "second": torch.tensor(other)}

    table = exchange(Batch(job, peers, where), reports)[Server(2, 0)]
    (totals,) = table.totals.values()
    assert [each.tolist() for each in totals] == [[21.0, 3.0], [9.0, 3.0]]


def test_what_is_no_number_stays_none():
    job = paper_job(pipelines=2, stages=1, micro_batches=1)
    strange = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e-42, 1 / 3])
    where = {MicroBatch(STEP, home, 0): Server(1 - home, 0) for home in range(2)}
    for table in exchange(Batch(job, tuple(job.servers()), where), lambda _: {"loss": strange}).values():
        assert Value.of(table.rows[0]["loss"]) == Value.of(strange)


@settings(max_examples=10, deadline=None)
@given(batches())
def test_who_was_not_there_has_the_reports_by_what_the_others_know(batch):
    tables = exchange(batch)
    known = tables[batch.peers[0]].results
    for server, table in exchange(batch, lambda each: report(MicroBatch(0, 9, 9))).items():
        table.take(batch.peers, known)
        expected = tables[server]
        assert [list(row) for row in table.rows] == [list(row) for row in expected.rows]
        assert all(
            same(row[name], other[name]) for row, other in zip(table.rows, expected.rows, strict=True) for name in row
        )
        assert table.totals.keys() == expected.totals.keys()
        for key, totals in table.totals.items():
            assert all(map(same, totals, expected.totals[key]))
