import msgspec
import pytest
from hypothesis import given

from harness.examples import paper_job
from recycle.job import Job, Server, Stage
from recycle.placement import parse_placement
from recycle.plan.mode import Mode
from recycle.planner.anneal.improve import LARGE, improve
from recycle.planner.greedy.list_scheduler import POLICIES, list_schedule
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.objective import value
from recycle.planner.model.problem import make_problem
from recycle.planner.model.stopping import MaxMoves, MaxSeconds, Progress
from tests.planner.legality import assert_legal
from tests.planner.test_table import TABLE, table_problem
from tests.strategies import problems


class Reached(msgspec.Struct, frozen=True):
    """Stop at a value."""

    value: int

    def reached(self, progress: Progress) -> bool:
        return progress.value <= self.value


@pytest.mark.parametrize(("failed", "mode", "limit", "released", "expected"), TABLE)
def test_the_proved_optima_of_the_paper_s_job(failed, mode, limit, released, expected):
    problem = table_problem(failed, mode, limit, released)
    found = improve(problem, [Reached(expected), MaxMoves(200_000)])
    assert found.progress.value == expected
    assert_legal(problem, found.programs)


@given(problems())
def test_never_worse_than_the_greedy_schedules_nor_below_the_bound(problem):
    found = improve(problem, [MaxMoves(300)])
    assert_legal(problem, found.programs)
    assert found.progress.value == value(problem, found.programs)
    assert found.progress.bound == lower_bound(problem).value <= found.progress.value
    assert found.progress.value <= min(value(problem, list_schedule(problem, policy)) for policy in POLICIES)


def hard():
    return make_problem(paper_job(4, 0, micro_batches=7), [Server(1, 0), Server(2, 1), Server(2, 3)], Mode())


def test_the_same_seed_and_moves_give_the_same_programs():
    found, again = (improve(hard(), [MaxMoves(3000)], seed=5) for _ in range(2))
    assert found.programs == again.programs
    assert found.progress.moves == again.progress.moves


def test_every_report_is_an_improvement_and_the_last_is_the_result():
    reports = []
    found = improve(hard(), [MaxMoves(20_000)], watch=lambda value, bound: reports.append((value, bound)))
    values = [value for value, _ in reports]
    assert values == sorted(set(values), reverse=True)
    assert {bound for _, bound in reports} == {found.progress.bound}
    assert reports[-1][0] == found.progress.value


def test_an_interrupted_search_keeps_the_best():
    class Interrupt:
        def reached(self, progress):
            if progress.moves >= 640:
                raise KeyboardInterrupt
            return False

    problem = hard()
    found = improve(problem, [Interrupt()])
    assert found.progress.value == value(problem, found.programs)


def uneven(pipelines, limit=16):
    """16 stages of uneven costs, with latency and memory for no more micro-batches than stages."""
    return Job(pipelines, 64, (Stage(10, 12, 7, 60, 0, 1, 0, limit),) * 16, (1,) * 15)


@pytest.mark.parametrize("pipelines", [9, 10])
def test_without_failures_the_number_of_pipelines_makes_no_difference(pipelines):
    problem = make_problem(uneven(pipelines), (), Mode())
    found = improve(problem, [MaxMoves(0)])
    assert found.progress.value == value(problem, found.programs) == 2201 == lower_bound(problem).value


def interleaved(pipelines, last=1):
    """16 servers of two chunks, with latency and memory for twice as many micro-batches as servers."""
    chunks = (*(Stage(1, 1, 1, 0, 0, 1, 0, 64),) * 31, Stage(last, last, last, 0, 0, 1, 0, 64))
    return Job(pipelines, 64, chunks, (1,) * 31, placement=parse_placement("interleaved:2", 16))


@pytest.mark.parametrize("last", [1, 2])
def test_interleaved_servers_stay_close_to_the_bound_with_no_time_at_all(last):
    # Where the last chunk takes longer, the dead server's peers idle for so long that all its work is left over.
    job = interleaved(12, last)
    problem = make_problem(job, [Server(3, 9)], Mode())
    assert problem.tasks > LARGE
    found = improve(problem, [MaxSeconds(0)])
    assert found.progress.value == value(problem, found.programs) <= 1.03 * found.progress.bound
    assert found.clock is not None
    assert found.clock.period == found.progress.value


def test_an_interleaved_pipeline_with_latency_meets_its_bound():
    problem = make_problem(interleaved(1), (), Mode())
    assert improve(problem, [MaxMoves(1)]).progress.value == 413 == lower_bound(problem).value


def test_a_large_job_uses_its_budget_for_a_better_pattern():
    job = uneven(32, limit=24)
    problem = make_problem(job, (), Mode())
    assert problem.tasks > LARGE
    quick, long = (improve(problem, [MaxMoves(moves)]) for moves in (0, 2000))
    assert long.progress.moves >= 2000
    assert long.progress.value <= quick.progress.value
    assert value(problem, long.programs) == long.progress.value
