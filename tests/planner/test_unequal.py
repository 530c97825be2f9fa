"""Plans for pipelines that are not alike: of unequal depth, with servers of other speeds, unequal micro-batches."""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.examples import QUICK
from harness.job_files import encode_job
from harness.least_value import least_value
from recycle.errors import JobError, NoPlanError
from recycle.holding import with_own_layout
from recycle.job import Job, Server, Stage
from recycle.jobfile import load_job
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.plan.checker import check_plan
from recycle.plan.document import decode_plan, encode_plan
from recycle.plan.mode import Mode
from recycle.planner.anneal.search import search
from recycle.planner.catalogue import make_catalogue
from recycle.planner.claims import judge_claims
from recycle.planner.explain import explain
from recycle.planner.make import make_plan
from recycle.planner.model.bounds import breakdown
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves
from tests.planner.rows import judge_rows
from tests.strategies import jobs, modes, placed_jobs, some_dead, unequal_jobs

EFFORT = [MaxMoves(300)]


def unequal_job(latency=0, slow=100):
    """Two servers beside three, whose cuts make four chunks."""
    short = PlacedPipeline(4, (PlacedServer((0, 1), 8), PlacedServer((2, 3), 8)))
    long = PlacedPipeline(3, (PlacedServer((0,), 4), PlacedServer((1, 2), 8, slow), PlacedServer((3,), 4)))
    return Job(2, 4, (Stage(2, 3, 2, 1, 1, 1, 0, 8),) * 4, (latency,) * 3, layout=(short, long))


@given(st.data(), modes)
@settings(max_examples=60)
def test_plans_are_legal_from_their_rows_and_survive_files(tmp_path_factory, data, mode):
    job = data.draw(unequal_jobs(4, pipelines=3))
    # A file of a job that takes no time is refused.
    assume(any(stage.forward or stage.input_gradient or stage.weight_gradient for stage in job.stages))
    # A plan below its bound is refused when it is made, behind a barrier too.
    plan = make_plan(job, some_dead(data.draw, job), mode, QUICK)
    assert not check_plan(plan)
    assert not judge_claims(plan).violations
    judge_rows(plan)
    assert decode_plan(encode_plan(plan), "plan.json") == plan
    path = tmp_path_factory.mktemp("jobs") / "job.toml"
    path.write_bytes(encode_job(job))
    again = load_job(path, {})
    assert encode_job(again) == encode_job(job)
    assert (again.layout, again.latency) == (job.layout, job.latency)


TINY = {
    "alike": jobs(pipelines=2, depth=2, micro_batches=2, cost=3),
    "placed": placed_jobs(pipelines=2, servers=2, chunks=3, micro_batches=2),
    "written": placed_jobs(pipelines=2, servers=2, chunks=3, micro_batches=2).map(with_own_layout),
    "unequal": unequal_jobs(3, 2),
}


@pytest.mark.parametrize("kind", TINY)
@given(st.data(), modes)
@settings(max_examples=15)
def test_no_bound_is_above_the_least_value_and_no_plan_below(kind, data, mode):
    job = data.draw(TINY[kind])
    problem = make_problem(job, some_dead(data.draw, job), mode)
    found = search(problem, EFFORT).progress.value
    least = least_value(problem, found)
    assert all(bound.value <= least for bound in breakdown(problem))
    assert least <= found


def test_pipelines_that_share_nothing_are_planned_as_well_as_each_alone():
    plan = make_plan(unequal_job(slow=50), (), Mode(), QUICK)
    # The slow server: 3 micro-batches x 2 chunks x 14, and per chunk a reduction and a step that takes twice as long.
    assert (plan.period, plan.bound, plan.provenance.bound_by) == (90, 90, "work of W1_1")
    assert plan.provenance.status == "optimal"


def test_the_baseline_is_that_of_the_slowest_pipeline():
    job = unequal_job()
    stage = Stage(4, 6, 4, 2, 2, 2, 0, 8)
    alone = make_plan(Job(1, 4, (stage, stage), (0,)), (), Mode(), QUICK).baseline
    assert make_plan(job, (), Mode(), QUICK).baseline >= alone


def test_a_chunk_without_a_live_server_is_named():
    with pytest.raises(NoPlanError, match="chunk 3 has no live server"):
        make_plan(unequal_job(), [Server(0, 1), Server(1, 2)], Mode(), QUICK)


def test_what_takes_pipelines_that_are_alike_says_so(tmp_path):
    job = unequal_job()
    with pytest.raises(JobError, match="a catalogue takes pipelines that are alike"):
        make_catalogue(tmp_path / "c.zip", job, Mode(), 1, QUICK, "lowered", lambda *_: None)
    with pytest.raises(JobError, match="an explanation takes pipelines that are alike"):
        explain(make_plan(job, (), Mode(), QUICK))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"1F1.0"', '"3F1.0"', "W1_1 holds chunk 1 and chunk 2"),
        ('"0F1.2"', '"0F1.3"', r"no micro-batch 1.3 in 2 pipelines of \[4, 3\]"),
        ('"speed": 50', '"speed": 60', "the plan says (makespan|period)"),
        ('"micro_batches": 3, "servers"', '"micro_batches": 4, "servers"', "micro-batch 1.3 has no F at chunk 0"),
        ('"chunks": [2, 3], "limit": 8', '"chunks": [2, 3], "limit": 2', "and its limit is 2"),
    ],
)
def test_the_checker_finds_what_is_wrong_with_chunks_micro_batches_speeds_and_limits(old, new, message):
    text = encode_plan(make_plan(unequal_job(slow=50), (), Mode(), QUICK, "compute")).decode()
    changed = text.replace('":', '": ').replace(",", ", ").replace(":  ", ": ").replace(",  ", ", ")
    assert old in changed
    found = check_plan(decode_plan(changed.replace(old, new, 1).encode(), "plan.json"))
    assert re.search(message, found[0].message)


def test_a_layout_that_does_not_hold_the_model_is_refused():
    short = PlacedPipeline(2, (PlacedServer((0, 1), 8),))
    stages = (Stage(1, 1, 1, 0, 0, 1, 0, 8),) * 2

    def job(*layout, pipelines=2, micro_batches=2):
        return Job(pipelines, micro_batches, stages, (0,), layout=layout)

    with pytest.raises(JobError, match="pipeline 1: placement: chunk 1: no server holds it"):
        job(short, PlacedPipeline(1, (PlacedServer((0,), 8),)))
    with pytest.raises(JobError, match="limit of server 0 of pipeline 1 is 1: one micro-batch of its chunks"):
        job(short, PlacedPipeline(1, (PlacedServer((0, 1), 1),)))
    with pytest.raises(JobError, match="speed of server 0 of pipeline 1 is 0: it is in percent"):
        job(short, PlacedPipeline(1, (PlacedServer((0, 1), 8, 0),)))
    with pytest.raises(JobError, match="micro_batches of pipeline 1 is 0"):
        job(short, PlacedPipeline(0, (PlacedServer((0, 1), 8),)))
    with pytest.raises(JobError, match="2 pipelines of up to 2 micro-batches, and the job says 3 of up to 2"):
        job(short, short, pipelines=3)
