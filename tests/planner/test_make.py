import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.examples import QUICK, paper_job
from recycle.errors import JobError
from recycle.job import Job, Server, Stage
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.plan.plan import SOLVER
from recycle.planner.assemble import baseline_period, unlimited_baseline
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves
from tests.strategies import jobs, placed_jobs


def test_a_plan_says_what_it_was_made_for_and_how_good_it_is():
    job = paper_job()
    plan = make_plan(job, [Server(1, 2)], Mode(), QUICK)
    assert (plan.job, set(plan.dead), plan.mode, plan.form) == (job, {Server(1, 2)}, Mode(), "lowered")
    assert (plan.period, plan.bound, plan.baseline) == (30, 30, 30)
    assert plan.provenance.status == "optimal"
    assert (plan.gap, plan.throughput) == (0.0, 1.0)
    assert plan.provenance.bound_by == "work of stage 2"
    assert (plan.provenance.seed, plan.provenance.budget) == (0, "2000 moves")


def test_a_global_optimizer_adds_the_longest_update_behind_the_makespan():
    plan = make_plan(paper_job(limit=(4, 3, 2, 1)), [], Mode("fused", "global"), QUICK)
    assert (plan.makespan, plan.period, plan.bound) == (27, 30, 30)


def test_the_baseline_is_one_forward_one_backward_under_the_jobs_limits():
    assert baseline_period(paper_job()) == 30
    assert baseline_period(paper_job(limit=(4, 3, 2, 1))) == 30
    # One activation at a time: every micro-batch runs alone, 12 slots each.
    assert baseline_period(paper_job(limit=1)) == 6 * 12 + 3
    assert baseline_period(paper_job(limit=(2, 4, 4, 4))) > 30


def test_progress_is_monotone_and_in_periods():
    seen = []
    make_plan(
        paper_job(limit=(4, 3, 2, 1)),
        [Server(1, 2)],
        Mode("fused", "global"),
        QUICK,
        watch=lambda period, bound: seen.append((period, bound)),
    )
    assert seen[-1] == (39, 39)
    assert [period for period, _ in seen] == sorted((period for period, _ in seen), reverse=True)


@pytest.mark.parametrize("shape", [{"stages": 1}, {"pipelines": 1}, {"micro_batches": 1}, {"limit": 1}])
@pytest.mark.parametrize("form", ["lowered", "compute"])
def test_degenerate_shapes_are_planned(shape, form):
    job = paper_job(**shape)
    failed = [] if job.pipelines == 1 else [Server(0, 0)]
    for mode in (Mode(), Mode("fused", "global"), Mode(routing="free")):
        assert check_plan(make_plan(job, failed, mode, QUICK, form)) == ()


def test_a_proof_for_pipelines_that_are_all_alike_is_one_for_a_single_one():
    # The rules prove 45 here. A model of all forty pipelines would be too large for the solver.
    job = Job(40, 5, (Stage(1, 3, 2, 3, 0, 1, 0, 2),) * 3, (0, 0))
    plan = make_plan(job, (), Mode(), Effort((MaxMoves(100),), "100 moves", proof=60.0))
    assert (plan.period, plan.bound, plan.provenance.bound_by) == (46, 46, SOLVER)
    assert check_plan(plan) == ()


def test_a_proof_for_a_large_job_with_failures_is_refused():
    job = paper_job(pipelines=500)
    with pytest.raises(JobError, match=r"a proof for 36000 tasks.*leave --prove out"):
        make_plan(job, (Server(0, 0),), Mode(), Effort((MaxMoves(1),), "1 move", proof=1.0))


OTHER_NEIGHBOURS = Job(
    1, 2, tuple(Stage(0, 0, 0, 0, 0, held, 0, limit) for held, limit in ((1, 4), (2, 4), (1, 4), (1, 1))), (0, 0, 1)
)
"""A server of chunks 0 and 2 has room for two micro-batches of them, and for one of 1 and 2, which it has in 1F1B."""


LARGE_FIRST = Job(
    3, 6, tuple(Stage(1, 1, 1, 1, 0, held, 0, 22) for held in (10, 10, 1, 1)), (0, 0, 0), placement=((0, 2), (1, 3))
)
"""Neighbouring chunks hold more together than those of any server."""


@given(st.one_of(jobs(), placed_jobs()))
@example(LARGE_FIRST)
@example(msgspec.structs.replace(OTHER_NEIGHBOURS, placement=((1,), (0, 2), (3,))))
def test_memory_that_slows_1f1b_down_is_named_with_it(job):
    if unlimited_baseline(job) < baseline_period(job):
        assert job.baseline_name == "fault-free 1F1B within this memory"
    roomy = msgspec.structs.replace(
        job, stages=tuple(msgspec.structs.replace(each, limit=10_000) for each in job.stages)
    )
    assert roomy.baseline_name == "fault-free 1F1B"
    assert unlimited_baseline(job) == baseline_period(roomy)
