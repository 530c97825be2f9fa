"""The bounds for several chunks against the least values of small problems, and against plans."""

import pytest

from harness.examples import placed_job
from recycle.plan.mode import Mode
from recycle.planner.greedy.chunked import chunk_schedules
from recycle.planner.model.bounds import breakdown, lower_bound
from recycle.planner.model.objective import value
from recycle.planner.model.problem import make_problem


@pytest.mark.parametrize(
    ("costs", "latency", "limit", "rule"),
    [((1, 1, 1), 0, 8, "work"), ((10, 12, 7), 0, 8, "sandwich"), ((1, 1, 1), 1, 8, "sandwich")],
)
def test_the_bound_of_a_v_says_what_binds(costs, latency, limit, rule):
    job = placed_job("v-shaped", 1, 4, 8, limit, latency, costs, 0)
    bound = lower_bound(make_problem(job, (), Mode()))
    # Where memory is short, the server at the turn owes W, and the first server's window must hold all the rest.
    assert bound.rule == rule
    assert rule == "work" or bound.stage == 3


def test_a_dead_server_leaves_its_chunks_to_its_peers_one_by_one():
    job = placed_job("v-shaped", 4, 4, 3, 8, optimizer=2)
    problem = make_problem(job, (job.servers()[1],), Mode())
    work = [bound.value for bound in breakdown(problem) if bound.rule == "work"]
    # Six chunks of three tasks and two updates; and of the dead one's six, two for each of three peers.
    assert work == [18 + 4, 18 + 6 + 4, 18 + 4, 18 + 4]


@pytest.mark.parametrize(("form", "limit", "rule"), [("v-shaped", 16, "sandwich"), ("v-shaped", 32, "warm-up")])
def test_where_results_travel_long_the_first_server_s_idle_time_and_a_full_memory_are_counted(form, limit, rule):
    problem = make_problem(placed_job(form, 1, 8, 16, limit, 1, optimizer=0), (), Mode())
    bound = lower_bound(problem)
    assert bound.rule == rule
    assert bound.value == min(value(problem, programs) for programs in chunk_schedules(problem))


def test_guests_do_not_fill_what_a_server_waits_for_before_its_first_input_gradient():
    job = placed_job("interleaved:2", 6, 4, 6, 16, 2, optimizer=0)
    problem = make_problem(job, (job.servers()[4],), Mode())
    found = {(bound.rule, bound.stage): bound.value for bound in breakdown(problem)}
    # It is 31 from the first F of the place to its first I, and F take memory for 16 of these.
    assert found["work", 0] == 36 + 9
    assert found["warm-up", 0] == found["work", 0] + 31 - 16
