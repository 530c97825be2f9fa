import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_job
from recycle.job import Job, Server, Stage
from recycle.plan.mode import Mode
from recycle.planner.greedy import batches
from recycle.planner.greedy.batches import POLICIES, schedule_large, simulate
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.objective import value
from recycle.planner.model.problem import make_problem
from recycle.planner.model.routing import dealt_routes
from tests.planner.legality import assert_legal
from tests.strategies import problems


def even_job(pipelines, stages, micro_batches, limit, latency=0, cost=1):
    stage = Stage(cost, cost, cost, 3 * cost, 0, 1, 0, limit)
    return Job(pipelines, micro_batches, (stage,) * stages, (latency,) * (stages - 1))


def random_failures(job, number, seed):
    return random.Random(seed).sample(job.servers(), number)


@given(problems())
def test_every_plan_is_legal_and_not_below_the_bound(problem):
    programs = schedule_large(problem)
    assert_legal(problem, programs)
    assert value(problem, programs) >= lower_bound(problem).value


@given(problems(), st.sampled_from(POLICIES))
def test_the_value_of_a_simulation_is_met_by_its_programs(problem, policy):
    schedule = simulate(problem, dealt_routes(problem), policy)
    programs = {
        Server(pipeline, stage): schedule.programs[stage][pipeline]
        for stage, live in enumerate(problem.live)
        for pipeline in live
    }
    assert value(problem, programs) <= schedule.value


def test_without_failures_all_pipelines_are_alike():
    job = paper_job(pipelines=5)
    programs = schedule_large(make_problem(job, (), Mode()))
    for server, tasks in programs.items():
        shift = 3 * job.micro_batches * server.pipeline
        assert [task - shift for task in tasks] == programs[Server(0, server.stage)]


@pytest.mark.parametrize("share", [1, 1.5, 2])
@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (8, 20), (16, 64), (32, 64)])
def test_fault_free_pipelines_of_equal_costs_meet_the_bound(stages, micro_batches, share):
    problem = make_problem(even_job(1, stages, micro_batches, int(share * stages)), (), Mode())
    assert value(problem, schedule_large(problem)) == lower_bound(problem).value


def test_failures_in_one_stage_and_at_both_ends():
    job = even_job(64, 16, 64, 32)
    failed = [Server(0, 0), Server(5, 0), Server(9, 15), Server(9, 7), *(Server(pipeline, 7) for pipeline in range(4))]
    problem = make_problem(job, failed, Mode())
    programs = schedule_large(problem)
    assert_legal(problem, programs)
    assert value(problem, programs) <= 1.02 * lower_bound(problem).value


def test_the_same_problem_gives_the_same_programs_in_any_unit_of_time():
    coarse, fine = even_job(16, 8, 24, 16), even_job(16, 8, 24, 16, cost=10)
    failed = random_failures(coarse, 3, seed=1)
    programs = schedule_large(make_problem(coarse, failed, Mode()))
    assert programs == schedule_large(make_problem(coarse, failed, Mode()))
    assert programs == schedule_large(make_problem(fine, failed, Mode()))


def test_policies_beyond_the_effort_are_tried_as_long_as_one_may_go_on(monkeypatch):
    # No policy reaches the bound in so little memory; that would end the search.
    job = even_job(8, 8, 16, 6)
    problem = make_problem(job, random_failures(job, 2, 3), Mode())
    monkeypatch.setattr(batches, "EFFORT", 0)
    asked = []

    def may_go_on():
        asked.append(None)
        return len(asked) < 5

    tried = []
    monkeypatch.setattr(batches, "simulate", lambda *each: tried.append(simulate(*each)) or tried[-1])
    ranked = len(POLICIES)
    schedule_large(problem)
    assert len(tried) == ranked + 1
    tried.clear()
    programs = schedule_large(problem, may_go_on)
    assert len(tried) == ranked + 5
    assert value(problem, programs) <= min(each.value for each in tried[ranked:])
