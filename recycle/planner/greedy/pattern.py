"""Plans made from the plan of one pipeline: every pipeline follows it, and guests go where it leaves a place free.

A pattern is a plan of one pipeline with more micro-batches than a pipeline brings. Each pipeline leaves some of its
places free, each at others; its own micro-batches take the rest in order. A guest has one of the places at its own
pipeline, and is executed by a server whose pipeline leaves that place free. So whoever executes a task, its time is
that of the pattern, and no plan made this way is longer than the pattern, whichever servers are dead.

Let D pipelines bring M micro-batches each, at most f servers of a stage be dead, and k = ceil(D * M / (D - f)): what
the busiest server executes in any plan. A pattern of k micro-batches has room for all. Each pipeline leaves k - M of
its places free, D * (k - M) in all, and that is f * k or more; spread evenly, every place is free in f pipelines or
more. Take a stage with f dead servers and a place that is free in c pipelines, z of them with a dead server: the place
has f - z guests, and c - z live servers have it free, which are as many or more.

So the value of the pattern is reached. Where it equals the bound of a stage with k micro-batches, no plan is better.

A pattern of fewer micro-batches is shorter, and leaves guests over. They are put beside the micro-batch in their place,
each of their chunks on another server, and releases of memory are moved forward for them; what that costs, or whether
servers then wait for each other, only the clock tells. Servers make up for it where they idle for longer than these
guests take (``needed``), and do not wait for each other if the pattern leaves memory for them (``sparing``).
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from recycle.job import Server
from recycle.planner.model.objective import timing
from recycle.planner.model.problem import Problem, Programs, make_problem, one_pipeline


def busiest(problem: Problem) -> int:
    """How many micro-batches the busiest server executes at least: k above."""
    return max(map(problem.least_share, range(len(problem.live))))


def left_over(problem: Problem, places: int) -> list[int]:
    """Per place of a pipeline, how many guests are left over for the busiest server by a pattern of so many places."""
    return [max(0, problem.least_share(place) - places) for place in range(len(problem.live))]


def needed(problem: Problem, places: int, times: int = 1) -> int:
    """How long servers take for a pattern of so many places, and so many times as long as for the guests left over."""
    each = [sum(sum(problem.cost[chunk]) for chunk in chunks) for chunks in problem.job.chunks]
    over = left_over(problem, places)
    return max((places + times * more) * cost for more, cost in zip(over, each, strict=True))


def sparing(problem: Problem, places: int) -> Problem:
    """The problem of a pattern that keeps memory for the guests left over."""
    pattern = one_pipeline(problem, places)
    stages = list(pattern.job.stages)
    for more, chunks in zip(left_over(problem, places), problem.job.chunks, strict=True):
        least = pattern.job.needs(chunks)
        held = sum(problem.acquire[chunk][0] for chunk in chunks)
        for chunk in chunks:
            limit = max(least, stages[chunk].limit - more * held)
            stages[chunk] = msgspec.structs.replace(stages[chunk], limit=limit)
    return make_problem(msgspec.structs.replace(pattern.job, stages=tuple(stages)), (), problem.mode)


def pattern_of(problem: Problem, programs: Programs) -> Programs:
    """The pattern that all pipelines of a plan without failures follow.

    Args:
        problem: what was planned.
        programs: the plan.
    """
    total, micro_batches = problem.total, problem.job.micro_batches
    return {
        server: [(task // 3 // total * micro_batches + task // 3 % total) * 3 + task % 3 for task in tasks]
        for server, tasks in programs.items()
        if server.pipeline == 0
    }


def spread(problem: Problem, pattern: Programs, places: int, over: int = 0) -> Programs:
    """A plan in which every pipeline follows a pattern.

    Args:
        problem: what is planned.
        pattern: programs of one pipeline with the job's stages, without failures.
        places: how many micro-batches it has, no fewer than a pipeline of the problem; with ``busiest`` no guest is
            left over.
        over: the place that fewest pipelines leave free, whose guest is the first to be left over.

    Returns:
        Programs that keep to memory. With fewer places than ``busiest`` servers may wait for each other.
    """
    taken = _places(problem, places, over)
    due = _starts(problem, pattern, places)
    programs: dict[Server, list[int]] = {}
    for stage, live in enumerate(problem.live):
        hosted = _host(problem, stage, taken)
        order = pattern[Server(0, stage)]
        for pipeline in live:
            units = hosted[pipeline]
            tasks = [
                ((task // 3 // places * problem.total + unit) * 3 + task % 3, time)
                for task, time in zip(order, due[stage], strict=True)
                for unit in units[task // 3]
            ]
            crowded = any(len(each) > 1 for each in units)
            programs[Server(pipeline, stage)] = _fit(problem, stage, tasks) if crowded else [task for task, _ in tasks]
    return programs


def _starts(problem: Problem, pattern: Programs, places: int) -> list[list[int]]:
    """When the tasks of each server of a pattern start."""
    starts = iter(timing(one_pipeline(problem, places), pattern).start)
    return [list(islice(starts, len(pattern[server]))) for server in sorted(pattern)]


def _places(problem: Problem, places: int, over: int) -> list[list[int | None]]:
    """Per pipeline, its micro-batch in each place, None where it is free."""
    micro_batches = problem.job.micro_batches
    free = places - micro_batches
    taken: list[list[int | None]] = []
    for pipeline in range(problem.job.pipelines):
        # Dealt from the place before that on, backwards: it comes last.
        gaps = {(over - 1 - number) % places for number in range(pipeline * free, (pipeline + 1) * free)}
        own = iter(range(pipeline * micro_batches, (pipeline + 1) * micro_batches))
        taken.append([None if place in gaps else next(own) for place in range(places)])
    return taken


def _host(problem: Problem, stage: int, taken: Sequence[Sequence[int | None]]) -> dict[int, list[list[int]]]:
    """Per live pipeline, the micro-batches that its server executes in each place, for one chunk after another."""
    live, chunks = problem.live[stage], problem.job.chunks[stage]
    hosted = {pipeline: [[] if unit is None else [unit] for unit in taken[pipeline]] for pipeline in live}
    dead = sorted(set(range(problem.job.pipelines)) - set(live))
    load = dict.fromkeys(live, 0)
    over: list[tuple[int, int]] = []
    # Where few servers have a place free, they are given it before others have filled them.
    gaps = [[pipeline for pipeline in live if taken[pipeline][place] is None] for place in range(len(taken[0]))]
    for place in sorted(range(len(gaps)), key=lambda place: len(gaps[place])):
        for home in dead:
            unit = taken[home][place]
            if unit is None:
                continue
            open_ = [pipeline for pipeline in gaps[place] if not hosted[pipeline][place]]
            if not open_:
                over.append((place, unit))
                continue
            host = min(open_, key=lambda pipeline: load[pipeline])
            hosted[host][place].append(unit)
            load[host] += len(chunks)
    by_chunk = {pipeline: [list(units) for _ in chunks for units in each] for pipeline, each in hosted.items()}
    for slot in range(len(chunks)):
        for place, unit in sorted(over):
            # Its other servers make up for what a guest delays where their own next place is free.
            host = min(live, key=lambda pipeline: (load[pipeline], _wait(taken[pipeline], place), pipeline))
            by_chunk[host][slot * len(gaps) + place].insert(0, unit)
            load[host] += 1
    return by_chunk


def _wait(taken: Sequence[int | None], place: int) -> int:
    """How many places behind one the next free place of a pipeline is, from the first on again behind the last."""
    return min(((free - place) % len(taken) for free, unit in enumerate(taken) if unit is None), default=0)


def _fit(problem: Problem, stage: int, tasks: Sequence[tuple[int, int]]) -> list[int]:
    """The tasks of a server in an order that keeps to memory, and to a pattern as far as it can.

    F and I keep their order. A W waits while the server is late, for nothing waits for it; where an F needs memory, a W
    goes first, or the next I if there is none.

    Args:
        problem: what is planned.
        stage: the server's.
        tasks: in an order that may not keep to memory, with the time at which each starts in the pattern.
    """
    chunks, total = problem.job.chunks[stage], problem.total
    cost, acquire, release = (
        [amount for chunk in chunks for amount in table[chunk]]
        for table in (problem.cost, problem.acquire, problem.release)
    )
    room, reserve = problem.job.limit(stage), problem.reserve(chunks)
    waiting = [(task, due) for task, due in tasks if task % 3 < 2]
    weights: deque[int] = deque()
    started: set[int] = set()
    ordered: list[int] = []
    now = 0

    def rule(task: int) -> int:
        return task // 3 // total * 3 + task % 3

    while waiting or weights:
        number = 0
        if waiting:
            task, due = waiting[0]
            short = acquire[rule(task)] > room - (0 if task % 3 else reserve)
            if weights and (
                now + cost[rule(weights[0])] <= due or (short and any(release[rule(weight)] for weight in weights))
            ):
                number = -1
            elif short:
                number = next(place for place, (each, _) in enumerate(waiting) if each % 3 == 1 and each - 1 in started)
        else:
            number = -1
        task, due = (weights.popleft(), now) if number < 0 else waiting.pop(number)
        now = max(now, due) + cost[rule(task)]
        started.add(task)
        ordered.append(task)
        room += release[rule(task)] - acquire[rule(task)]
        if task % 3 == 1 and problem.kinds == 3:
            weights.append(task + 1)
    return ordered
