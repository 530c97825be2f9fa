from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import QUICK, paper_job
from recycle.job import Server
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.plan.normalise import canonical_dead, relabel_plan, relabelling
from recycle.planner.make import make_plan
from tests.strategies import failed_sets, jobs, modes


def test_counts_and_their_canonical_set():
    job = paper_job()
    assert job.dead_servers([Server(0, 2), Server(1, 2), Server(2, 0)]).counts == (1, 0, 2, 0)
    assert tuple(canonical_dead(job, (1, 0, 2, 0))) == (Server(1, 2), Server(2, 0), Server(2, 2))


def test_one_failure_needs_no_role():
    job = paper_job()
    reading = relabelling(job, job.dead_servers([Server(0, 2)]))
    assert reading.roles == {}
    assert reading.pipelines == (2, 1, 0)


def test_failures_in_different_pipelines_are_read_with_a_role():
    job = paper_job()
    dead = job.dead_servers([Server(0, 3), Server(1, 2)])
    reading = relabelling(job, dead)
    assert len(reading.roles) == 1
    ((actor, role),) = reading.roles.items()
    assert role in dead
    assert actor not in dead
    assert actor.stage == role.stage


@given(st.data())
@settings(max_examples=80)
def test_the_canonical_plan_is_legal_in_any_names(data):
    job = data.draw(jobs(pipelines=4, depth=3, micro_batches=3))
    dead = job.dead_servers(data.draw(failed_sets(job)))
    canonical = canonical_dead(job, dead.counts)
    plan = make_plan(job, canonical, data.draw(modes), QUICK)
    relabelled = relabel_plan(plan, dead)
    assert relabelled.dead == dead
    assert check_plan(relabelled) == ()
    assert (relabelled.period, relabelled.makespan) == (plan.period, plan.makespan)


def test_renaming_back_is_the_identity_for_the_canonical_set():
    plan = make_plan(paper_job(), (Server(2, 1), Server(2, 2)), Mode(), QUICK)
    assert relabel_plan(plan, plan.dead) == plan
