"""Schedules for servers of several chunks, made in one go: the best orders of F and I, with W where they fit."""

from collections.abc import Iterator
from itertools import chain

import msgspec

from recycle.planner.greedy.chunk_scheduler import POLICIES, ChunkPolicy, open_at_once, schedule_chunks
from recycle.planner.greedy.refit import refit
from recycle.planner.model.bounds import lower_bound
from recycle.planner.model.objective import value
from recycle.planner.model.problem import Problem, Programs, make_problem

EVEN_POLICIES = (
    ChunkPolicy(100, late=True, frees=True, steady=True),
    ChunkPolicy(100, late=True, frees=True),
    ChunkPolicy(0),
)
"""For the problem of even costs. The first makes the order of V-shaped zero-bubble schedules (Qi et al., 2024)."""

NO_TARGET = 1 << 60


def chunk_schedules(problem: Problem) -> Iterator[Programs]:
    """Legal programs, the likely best first.

    The order of F and I is taken from the problem itself, and from that of even costs without latency, where all
    servers of a V keep step.
    """
    target = lower_bound(problem).value
    orders: list[Programs] = []
    own, even = _by_policies(problem, target), _by_even_costs(problem, target, orders)
    is_folded = problem.job.even and problem.job.chunks[0][-1] == len(problem.job.stages) - 1
    yield from chain(even, own) if is_folded else chain(own, even)
    for order in orders if problem.kinds == 3 else ():
        yield from _targeted(problem, order, target)


def _by_policies(problem: Problem, target: int) -> Iterator[Programs]:
    # Those that take I of the last chunk first are often the best, above all the one that keeps step; and where round
    # trips need nearly all memory, those that keep it for all chunks.
    likely = sorted(POLICIES, key=lambda policy: (policy.late, not policy.steady, policy.fill))
    if _is_tight(problem):
        likely.sort(key=lambda policy: policy.ahead or NO_TARGET)
    for policy in likely:
        order = schedule_chunks(problem, policy)
        yield order
        if problem.kinds == 3:
            yield refit(problem, order, target)


def _by_even_costs(problem: Problem, target: int, orders: list[Programs]) -> Iterator[Programs]:
    """Orders for even costs, with W as they come there and placed anew; what they are is added to the orders."""
    even = _evened(problem)
    for policy in EVEN_POLICIES:
        order = schedule_chunks(even, policy)
        orders.append(order)
        if problem.kinds == 3:
            yield refit(problem, order, target)
            yield refit(problem, order, NO_TARGET)
        yield order


def _targeted(problem: Problem, order: Programs, bound: int) -> Iterator[Programs]:
    """One order with W placed for targets between the bound and what is reached without a target, by bisection.

    A server that aims at more than the others reach puts W where they delay F and I, and one without a target waits for
    too long: the least target that is met lies between.
    """
    least, met = bound, value(problem, refit(problem, order, NO_TARGET))
    while least < met:
        target = (least + met) // 2
        programs = refit(problem, order, target)
        yield programs
        if value(problem, programs) <= target:
            met = target
        else:
            least = target + 1


def _is_tight(problem: Problem) -> bool:
    """Whether what is between F and I at the busiest server's pace takes three quarters of some server's memory."""
    job = problem.job
    if not job.even:
        return False
    held = [problem.acquire[chunk][0] * open_at_once(problem, 100, chunk) for chunk in range(len(job.stages))]
    return any(4 * sum(held[chunk] for chunk in each) > 3 * job.limit(place) for place, each in enumerate(job.chunks))


def _evened(problem: Problem) -> Problem:
    """The same problem, with a time unit for each F, I and W, and without latency."""
    job = problem.job
    stages = [msgspec.structs.replace(each, forward=1, input_gradient=1, weight_gradient=1) for each in job.stages]
    even = msgspec.structs.replace(job, stages=tuple(stages), latency=(0,) * len(job.latency))
    return make_problem(even, problem.dead, problem.mode)
