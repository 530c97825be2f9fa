"""The memory rule: what each instruction takes and frees, and the walk through a program. It stands here only.

Two places count in forms of their own and take the amounts from here: the planner's simulations and its annealing,
which follow many servers at once or look at a part of a program, and the worker, which asks its stage what it holds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from recycle.holding import placed
from recycle.job import Job, Server, Stage
from recycle.plan.instruction import Instruction, Op


class MemoryChange(NamedTuple):
    """Memory that an instruction takes when it starts, and frees when it ends."""

    taken: int
    freed: int


def memory_changes(stage: Stage) -> Mapping[Op, MemoryChange]:
    """What each op of a chunk changes: F and I take memory, I and W free it; no other op does anything."""
    taken = {Op.F: stage.held, Op.I: stage.taken_at_input_gradient}
    freed = {Op.I: stage.released_at_input_gradient}
    freed[Op.W] = sum(taken.values()) - freed[Op.I]
    return {
        op: MemoryChange(
            sum(taken.get(phase, 0) for phase in op.phases), sum(freed.get(phase, 0) for phase in op.phases)
        )
        for op in Op
    }


def walk_memory(job: Job, server: Server, steps: Iterable[tuple[int, Op]]) -> Iterator[tuple[int, int]]:
    """Memory in use on a server while it executes each step of a program, and after it.

    Args:
        job: whose server it is.
        server: whose program it is.
        steps: the chunk and the op of each instruction.
    """
    changes = {chunk: memory_changes(job.stages[chunk]) for chunk in placed(job, server).chunks}
    level = 0
    for chunk, op in steps:
        taken, freed = changes[chunk][op]
        level += taken
        yield level, level - freed
        level -= freed


def first_excess(job: Job, server: Server, steps: Iterable[tuple[int, Op]]) -> tuple[int, int] | None:
    """The first step of a program that needs more memory than its server has, and how much it needs."""
    limit = placed(job, server).limit
    levels = (level for level, _ in walk_memory(job, server, steps))
    return next(((index, level) for index, level in enumerate(levels) if level > limit), None)


def peak_memory(job: Job, server: Server, program: Sequence[Instruction]) -> int:
    """The most memory that a server holds for activations at any time, given its program."""
    steps = ((instruction.stage, instruction.op) for instruction in program)
    return max((level for level, _ in walk_memory(job, server, steps)), default=0)
