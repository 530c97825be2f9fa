"""The memory rule: what each instruction takes and frees, and the walk through a program. It stands here only.

Two places count in forms of their own and take the amounts from here: the planner's simulations and its annealing,
which follow many servers at once or look at a part of a program, and the worker, which asks its stage what it holds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from recycle.job import Job, Stage
from recycle.plan.instruction import Instruction, Op


class MemoryChange(NamedTuple):
    """Memory that an instruction takes when it starts, and frees when it ends."""

    taken: int
    freed: int


def memory_changes(stage: Stage) -> Mapping[Op, MemoryChange]:
    """What each op of a chunk changes: F takes all, I and W free their parts; no other op does anything."""
    taken = {Op.F: stage.held}
    freed = {Op.I: stage.released_at_input_gradient, Op.W: stage.held - stage.released_at_input_gradient}
    return {
        op: MemoryChange(
            sum(taken.get(phase, 0) for phase in op.phases), sum(freed.get(phase, 0) for phase in op.phases)
        )
        for op in Op
    }


def walk_memory(job: Job, place: int, steps: Iterable[tuple[int, Op]]) -> Iterator[tuple[int, int]]:
    """Memory in use on a server while it executes each step of a program, and after it.

    Args:
        job: whose server it is.
        place: of the server in its pipeline.
        steps: the chunk and the op of each instruction.
    """
    changes = {chunk: memory_changes(job.stages[chunk]) for chunk in job.chunks[place]}
    level = 0
    for chunk, op in steps:
        taken, freed = changes[chunk][op]
        level += taken
        yield level, level - freed
        level -= freed


def first_excess(job: Job, place: int, steps: Iterable[tuple[int, Op]]) -> tuple[int, int] | None:
    """The first step of a program that needs more memory than its server has, and how much it needs."""
    limit = job.limit(place)
    levels = (level for level, _ in walk_memory(job, place, steps))
    return next(((index, level) for index, level in enumerate(levels) if level > limit), None)


def peak_memory(job: Job, program: Sequence[Instruction]) -> int:
    """The most memory that a server holds for activations at any time, given its program."""
    if not program:
        return 0
    steps = ((instruction.stage, instruction.op) for instruction in program)
    return max(level for level, _ in walk_memory(job, job.places[program[0].stage], steps))
