"""The search for a plan, of whatever kind the job is.

Pipelines that are not alike are planned one by one, each as a job of its own, as long as they do not share work: then
what is best for each is best for all, but for steps that wait for peers. Around dead servers, and where that is better,
all are planned together in one go. Where pipelines that are alike are written out, the job by number is planned.

Where routing is free, a plan that keeps micro-batches at home is legal too, and comes first. What is made in one go
depends on the numbers of the pipelines: as long as the budget lasts, each of them becomes the first in turn.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from recycle.errors import PlanningFailed
from recycle.holding import placed
from recycle.job import Job, Server
from recycle.plan.instruction import Instruction, Op
from recycle.planner.anneal.improve import LARGE, NOTHING_WHOLE, SearchResult, improve, is_walked
from recycle.planner.greedy.chunked import chunk_schedules
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.equivalent import Rotation, Twin, alone, chunk_runs
from recycle.planner.model.lowering import instructions
from recycle.planner.model.objective import is_whole, value
from recycle.planner.model.problem import Problem, Programs, make_problem
from recycle.planner.model.stopping import Progress, StoppingCriterion

TASKS_A_MOVE = 20
"""A schedule made in one go, beyond the first ones of all, counts as a move for every so many of its tasks."""


def search(
    problem: Problem,
    stops: Sequence[StoppingCriterion],
    seed: int = 0,
    watch: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Search for a good schedule; the arguments are those of ``improve``.

    Raises:
        PlanningFailed: none that was made is whole.
    """
    if problem.job.even and (problem.tasks > LARGE or problem.alike or is_walked(problem)):
        return improve(problem, stops, seed, watch=watch)
    bound = lower_bound(problem).value
    best: Programs | None = None
    least = moves = 0
    began = time.thread_time()

    def progress() -> Progress:
        return Progress(least, bound, moves, time.thread_time() - began)

    interrupted = False
    try:
        for programs, spent in _candidates(problem, stops, seed):
            moves += spent
            found = value(problem, programs) if is_whole(problem, programs) else None
            if found is not None and (best is None or found < least):
                best, least = programs, found
                if watch is not None:
                    watch(found, bound)
            if best is not None and (least <= bound or any(stop.reached(progress()) for stop in stops)):
                break
    except KeyboardInterrupt:
        if best is None:
            raise
        interrupted = True
    if best is None:
        raise PlanningFailed(NOTHING_WHOLE)
    return SearchResult(best, progress(), interrupted=interrupted)


def _candidates(problem: Problem, stops: Sequence[StoppingCriterion], seed: int) -> Iterator[tuple[Programs, int]]:
    """Schedules to choose from, with the moves that each of them took."""
    if not problem.mode.keeps_home:
        mode = msgspec.structs.replace(problem.mode, routing="home")
        home = make_problem(problem.job, problem.dead, mode)
        yield from _found(search(home, [_Share(stop, 2) for stop in stops], seed))
    elif not problem.job.even and problem.intact:
        yield from _found(_one_by_one(problem, stops, seed))
    twin = Twin.of(problem)
    if twin is not None:
        for programs, moves in _found(search(twin.problem, stops, seed)):
            yield twin.programs(programs), moves
        return
    if problem.job.even:
        yield from _found(improve(problem, stops, seed))
    else:
        for programs in chunk_schedules(problem):
            yield programs, 1
    turns = problem.dead or not problem.job.even
    for places in range(1, problem.job.pipelines) if turns else ():
        rotation = Rotation.of(problem, places)
        for programs in chunk_schedules(rotation.problem):
            yield rotation.programs(programs), 1 + problem.tasks // TASKS_A_MOVE


def _found(result: SearchResult) -> Iterator[tuple[Programs, int]]:
    """What another search has found. Ctrl-C that ended it ends the one that asked for it, too."""
    yield result.programs, result.progress.moves
    if result.interrupted:
        raise KeyboardInterrupt


class _Share(msgspec.Struct, frozen=True):
    """A stop for one of several searches, which gives each as much."""

    stop: StoppingCriterion
    searches: int

    def reached(self, progress: Progress) -> bool:
        """True once the search has had its share."""
        moves, seconds = progress.moves * self.searches, progress.seconds * self.searches
        return self.stop.reached(msgspec.structs.replace(progress, moves=moves, seconds=seconds))


def _one_by_one(problem: Problem, stops: Sequence[StoppingCriterion], seed: int) -> SearchResult:
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
    interrupted = any(result.interrupted for result in found.values())
    return SearchResult(programs, Progress(0, 0, moves, 0.0), interrupted=interrupted)


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
