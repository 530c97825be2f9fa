"""The search for a plan, of whatever kind the job is.

Pipelines that are not alike are planned one by one, each as a job of its own, as long as they do not share work: then
what is best for each is best for all, but for steps that wait for peers. Around dead servers, and where that is better,
all are planned together in one go.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from recycle.holding import placed
from recycle.job import Job, Server
from recycle.plan.instruction import Instruction, Op
from recycle.planner.anneal.improve import SearchResult, improve
from recycle.planner.greedy.chunked import chunk_schedules
from recycle.planner.model.alone import alone, chunk_runs
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.evaluate import value
from recycle.planner.model.lowering import instructions
from recycle.planner.model.problem import Problem, Programs, make_problem
from recycle.planner.model.stopping import Progress, StoppingCriterion


def search(
    problem: Problem,
    stops: Sequence[StoppingCriterion],
    seed: int = 0,
    watch: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Search for a good schedule; the arguments are those of ``improve``."""
    if problem.job.even:
        return improve(problem, stops, seed, watch=watch)
    bound = lower_bound(problem).value
    best: SearchResult | None = None
    spent = Progress(0, bound, 0, 0.0)
    for programs, progress in _unequal(problem, stops, seed):
        spent = Progress(0, bound, spent.moves + progress.moves, spent.seconds + progress.seconds)
        found = value(problem, programs)
        if best is None or found < best.progress.value:
            best = SearchResult(programs, Progress(found, bound, spent.moves, spent.seconds))
            if watch is not None:
                watch(found, bound)
        if best.progress.value <= bound or any(stop.reached(spent) for stop in stops):
            break
    assert best is not None
    return msgspec.structs.replace(best, progress=Progress(best.progress.value, bound, spent.moves, spent.seconds))


def _unequal(problem: Problem, stops: Sequence[StoppingCriterion], seed: int) -> Iterator[tuple[Programs, Progress]]:
    """Schedules for pipelines that are not alike, with what each of them took."""
    if problem.mode.routing_rule.keeps_home and problem.intact:
        yield _one_by_one(problem, stops, seed)
    for programs in chunk_schedules(problem):
        yield programs, Progress(0, 0, 1, 0.0)


class _Share(msgspec.Struct, frozen=True):
    """A stop for one of several searches, which gives each as much."""

    stop: StoppingCriterion
    searches: int

    def reached(self, progress: Progress) -> bool:
        """True once the search has had its share."""
        moves, seconds = progress.moves * self.searches, progress.seconds * self.searches
        return self.stop.reached(msgspec.structs.replace(progress, moves=moves, seconds=seconds))


def _one_by_one(problem: Problem, stops: Sequence[StoppingCriterion], seed: int) -> tuple[Programs, Progress]:
    """Every pipeline by the best schedule of its own; pipelines that are alike share it."""
    job = problem.job
    jobs = {pipeline: alone(job, pipeline, joined=True) for pipeline, crew in enumerate(job.crews) if crew}
    shares = [_Share(stop, len({*jobs.values()})) for stop in stops]
    found: dict[Job, SearchResult] = {}
    # A live server may hold nothing.
    programs: dict[Server, list[int]] = {server: [] for server in problem.servers}
    for pipeline, each in jobs.items():
        single = make_problem(each, (), problem.mode)
        if each not in found:
            found[each] = improve(single, shares, seed)
        for server, program in instructions(single, found[each].programs).items():
            mine = job.crews[pipeline][server.stage]
            programs[mine] = list(_tasks(problem, mine, program))
    moves = sum(result.progress.moves for result in found.values())
    seconds = sum(result.progress.seconds for result in found.values())
    return programs, Progress(0, 0, moves, seconds)


def _tasks(problem: Problem, server: Server, program: Sequence[Instruction]) -> Iterator[int]:
    """The tasks of a server that executes the chunks of each run one after the other."""
    job = problem.job
    pipeline = job.pipeline_of(server)
    runs = chunk_runs(job, pipeline)
    held = placed(job, server).chunks
    for each in program:
        run = runs[each.stage]
        for chunk in run if each.op is Op.F else reversed(run):
            unit = held.index(chunk) * problem.total + pipeline * job.micro_batches + each.micro_batch
            yield unit * 3 + problem.ops.index(each.op)
