"""The search as a whole: what it keeps, what it must not miss, and small jobs whose least period is known."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.examples import QUICK, paper_job
from recycle.errors import PlanningFailed
from recycle.holding import longest_update, with_own_layout
from recycle.job import Job, Server, Stage
from recycle.jobfile import load_job
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.planner import make
from recycle.planner.anneal import search as searching
from recycle.planner.anneal.search import search
from recycle.planner.greedy.chunk_scheduler import POLICIES, schedule_chunks
from recycle.planner.greedy.chunked import chunk_schedules
from recycle.planner.make import make_plan
from recycle.planner.model.bounds import breakdown, lower_bound
from recycle.planner.model.equivalent import Rotation
from recycle.planner.model.objective import is_whole, value
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves
from recycle.view.panel import make_panels
from recycle.view.subject import subject_of
from tests.strategies import failed_sets, modes, placed_jobs, some_dead, unequal_jobs

JOBS = Path(__file__).parent / "jobs"
ALL = [MaxMoves(5000)]
"""More than the schedules made in one go of the jobs here take, in all numberings."""

GLOBAL, FUSED, FREE = Mode(optimizer="global"), Mode("fused", "global"), Mode(routing="free")


@pytest.mark.parametrize(
    ("name", "dead", "mode", "bound", "period", "least"),
    [
        ("incomplete-unequal", "W0_1,W1_0", Mode(), 18, 24, 21),
        ("incomplete-one-death", "W0_0", FUSED, 36, 84, 45),
        ("bound-counts-dead-step", "W1_0", GLOBAL, 7, 7, 7),
        ("bound-one-chunk-of-eight", "W0_0", Mode(), 72, 72, 72),
        ("free-slow", "", FREE, 12, 12, 12),
        ("greedy-unequal", "W0_0", Mode(), 10, 15, 12),
        ("order-of-layouts-a", "W1_0", Mode(), 9, 9, 9),
        ("order-of-layouts-b", "W0_0", Mode(), 9, 9, 9),
        ("free-longer-than-home", "", Mode(), 20, 20, 20),
        ("free-longer-than-home", "", FREE, 17, 20, 20),
    ],
)
def test_the_bound_is_below_the_least_period_and_the_plan_is_whole_and_as_short(name, dead, mode, bound, period, least):
    servers = [Server.parse(each) for each in dead.split(",") if each]
    plan = make_plan(load_job(JOBS / f"{name}.toml", {}), servers, mode, QUICK)
    assert not check_plan(plan)
    assert bound <= plan.bound <= least <= plan.period <= period


@given(st.data(), modes)
@settings(max_examples=40)
def test_every_policy_executes_every_task_around_dead_servers(data, mode):
    job = data.draw(unequal_jobs(5, 3, pipelines=4))
    problem = make_problem(job, some_dead(data.draw, job), mode)
    for policy in POLICIES:
        assert is_whole(problem, schedule_chunks(problem, policy))


@pytest.mark.parametrize(("name", "dead"), [("incomplete-unequal", "W0_1,W1_0"), ("incomplete-one-death", "W0_0")])
@pytest.mark.parametrize("mode", [Mode(), FUSED])
def test_a_guest_of_one_chunk_hides_none_that_needs_more_room(name, dead, mode):
    servers = [Server.parse(each) for each in dead.split(",")]
    problem = make_problem(load_job(JOBS / f"{name}.toml", {}), servers, mode)
    assert all(is_whole(problem, programs) for programs in chunk_schedules(problem))


def unequal_problem():
    long = PlacedPipeline(2, (PlacedServer((0,), 4), PlacedServer((1,), 4)))
    short = PlacedPipeline(2, (PlacedServer((0, 1), 4),))
    job = Job(2, 2, (Stage(1, 1, 1, 0, 0, 1, 0, 4),) * 2, (0,), layout=(long, short))
    return make_problem(job, [Server(1, 0)], Mode())


def without_one(programs):
    return {server: tasks[:-1] for server, tasks in programs.items()}


def twice_the_first(programs):
    return {server: [*tasks[:-1], tasks[0]] for server, tasks in programs.items()}


@pytest.mark.parametrize("spoil", [without_one, twice_the_first])
def test_a_schedule_that_lacks_tasks_is_not_kept_however_short(monkeypatch, spoil):
    problem = unequal_problem()
    whole = list(chunk_schedules(problem))
    assert not is_whole(problem, spoil(whole[0]))
    made = [spoil(whole[0]), *whole]
    monkeypatch.setattr(searching, "chunk_schedules", lambda each: iter(made if each == problem else ()))
    assert is_whole(problem, search(problem, ALL).programs)
    del made[1:]
    with pytest.raises(PlanningFailed, match="no schedule in which every task is executed"):
        search(problem, ALL)


def test_a_plan_that_is_not_legal_is_an_error_and_not_handed_out(monkeypatch):
    job = paper_job(limit=2)

    def all_forward_first(problem, *_):
        found = search(problem, [MaxMoves(0)])
        programs = {server: sorted(tasks, key=lambda task: task % 3) for server, tasks in found.programs.items()}
        return msgspec.structs.replace(found, programs=programs, clock=None)

    monkeypatch.setattr(make, "search", all_forward_first)
    with pytest.raises(PlanningFailed, match=r"plan around W1_2 is not legal: .* and its limit is 2; report it"):
        make_plan(job, [Server(1, 2)], Mode(), QUICK)


def test_a_plan_below_its_bound_is_an_error(monkeypatch):
    high = lower_bound(make_problem(paper_job(), (), Mode()))
    monkeypatch.setattr(make, "lower_bound", lambda _: msgspec.structs.replace(high, value=high.value + 1))
    with pytest.raises(PlanningFailed, match="no period is below 25, and its own is 24"):
        make_plan(paper_job(), (), Mode(), QUICK)


@given(st.data(), modes)
@settings(max_examples=10)
def test_pipelines_written_out_are_planned_as_those_by_number(data, mode):
    job = data.draw(placed_jobs(pipelines=3, servers=2, chunks=4, micro_batches=3))
    # By number, servers may stand in another order than their chunks; written out, they have that of their chunks.
    assume(list(job.chunks) == sorted(job.chunks))
    dead = data.draw(failed_sets(job))
    number, written = (make_problem(each, dead, mode) for each in (job, with_own_layout(job)))
    proved = [sorted((bound.value, bound.rule) for bound in breakdown(each)) for each in (number, written)]
    assert proved[0] == proved[1]
    found = search(written, [MaxMoves(100)])
    assert is_whole(written, found.programs)
    assert value(written, found.programs) == found.progress.value
    # Fault-free, pipelines that are written out are planned one by one.
    if dead:
        assert found.progress.value == search(number, [MaxMoves(100)]).progress.value


@given(st.data(), st.integers(1, 2), modes)
@settings(max_examples=6)
def test_a_plan_around_dead_servers_does_not_depend_on_the_numbers_of_the_pipelines(data, places, mode):
    job = data.draw(unequal_jobs(3, 3, pipelines=3))
    problem = make_problem(job, some_dead(data.draw, job), mode)
    rotation = Rotation.of(problem, places % job.pipelines or 1)
    assert lower_bound(problem).value == lower_bound(rotation.problem).value
    # Of pipelines that share nothing each is searched for at random.
    assume(not problem.intact)
    found, other = search(problem, ALL), search(rotation.problem, ALL)
    assert found.progress.value == other.progress.value
    assert value(problem, rotation.programs(other.programs)) == other.progress.value


@given(st.data())
@settings(max_examples=10)
def test_free_routing_is_no_longer_than_home_around_dead_servers(data):
    job = data.draw(unequal_jobs(3, 3))
    dead = some_dead(data.draw, job)
    home, free = (make_problem(job, dead, mode) for mode in (Mode(), FREE))
    assume(not home.intact)
    assert search(free, ALL).progress.value <= search(home, ALL).progress.value


def test_no_step_of_a_dead_server_is_in_a_period_behind_a_barrier():
    job = load_job(JOBS / "bound-counts-dead-step.toml", {})
    slow = Server(1, 0)
    assert (longest_update(job, ()), longest_update(job, {slow})) == (2, 1)
    plan = make_plan(job, [slow], GLOBAL, QUICK)
    assert plan.period == plan.makespan + 1
    (panel,) = make_panels([subject_of(plan, "plan")], "stage")
    assert ("period", "7 slots = 6 slots + 1 slot optimizer") in panel.chart.facts


def test_an_interrupt_ends_all_searches_of_a_search(monkeypatch):
    problem = make_problem(load_job(JOBS / "free-longer-than-home.toml", {}), (), FREE)
    home = search(problem, ALL)
    interrupted = msgspec.structs.replace(home, interrupted=True)
    monkeypatch.setattr(searching, "improve", lambda *_, **__: interrupted)
    found = search(problem, ALL)
    assert found.interrupted
    assert is_whole(problem, found.programs)
