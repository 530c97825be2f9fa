"""Whole plans for servers of several chunks: around dead servers, in large jobs, from catalogues."""

import pytest

from harness.examples import QUICK, placed_job
from recycle.errors import JobError
from recycle.job import Job, Server, Stage
from recycle.plan.catalogue import Catalogue
from recycle.plan.checker import check_plan
from recycle.plan.document import decode_plan, encode_plan
from recycle.plan.mode import Mode
from recycle.planner.assemble import baseline_period
from recycle.planner.catalogue import make_catalogue
from recycle.planner.claims import judge_claims
from recycle.planner.explain import explain
from recycle.planner.make import make_plan


@pytest.mark.parametrize("form", ["v-shaped", "interleaved:2"])
@pytest.mark.parametrize("dead", ["", "W0_1", "W0_0,W1_2"])
def test_plans_are_legal_claim_what_is_true_and_survive_a_file(form, dead):
    job = placed_job(form, 3, 3, 4, 6, 1, (3, 4, 2))
    servers = [Server.parse(name) for name in dead.split(",") if name]
    plan = make_plan(job, servers, Mode(), QUICK)
    assert not check_plan(plan)
    claims = judge_claims(plan)
    assert not claims.violations
    assert claims.verified
    again = decode_plan(encode_plan(plan), "plan.json")
    assert again == plan
    assert again.job.chunks == job.chunks


def test_the_standard_placement_leaves_no_trace_in_a_file():
    job = placed_job("standard", 2, 3, 4, 3)
    assert b"placement" not in encode_plan(make_plan(job, (), Mode(), QUICK))


def test_a_large_job_with_failures_follows_its_best_pattern():
    job = placed_job("v-shaped", 40, 4, 32, 16, latency=1)
    plan = make_plan(job, [Server(3, 1), Server(7, 1), Server(8, 3)], Mode(), QUICK, "compute")
    assert 3 * len(job.stages) * 40 * 32 > 30_000
    assert not check_plan(plan)
    # The busiest server has 34 micro-batches, and the bound counts 33.5.
    assert plan.period <= 1.03 * plan.bound


def test_a_catalogue_serves_any_failure(tmp_path):
    job = placed_job("v-shaped", 3, 2, 3, 4)
    make_catalogue(tmp_path / "v.zip", job, Mode(), 1, QUICK, "lowered", lambda *_: None)
    for server in job.servers():
        plan = Catalogue(tmp_path / "v.zip", job).look_up([server]).plan()
        assert not check_plan(plan)
        assert set(plan.dead) == {server}


def test_the_baseline_has_as_many_neighbouring_chunks_on_each_server():
    job = placed_job("v-shaped", 2, 3, 4, 6, 1, (3, 4, 2))
    stage = Stage(6, 8, 4, 2, 0, 2, 0, 6)
    assert baseline_period(job) == baseline_period(Job(2, 4, (stage,) * 3, (1, 1)))


def test_the_baseline_has_the_memory_of_its_servers():
    def period(limit):
        of_first, of_second = (Stage(2, 3, 2, 1, 1, 1, 0, each) for each in (limit, 8))
        return baseline_period(Job(1, 6, (of_second, of_first, of_second), (0, 0), placement=((1,), (0, 2))))

    # 1F1B of two stages holds two micro-batches on the first.
    assert period(1) > period(2) == period(8)


def test_an_explanation_takes_one_chunk_per_server_and_says_so():
    job = placed_job("v-shaped", 2, 2, 2, 4)
    with pytest.raises(JobError, match="an explanation takes one chunk per server"):
        explain(make_plan(job, (), Mode(), QUICK))
