"""The planning problem in plain integers: what the schedulers and the solver read, and what they return.

Schedulers see tasks. The task of phase ``k`` (0 is F, 1 is I, or B where the backward is fused, 2 is W) of the
micro-batch ``(home, m)`` at a stage is the integer ``(home * micro_batches + m) * 3 + k`` in the program of a server of
that stage; a fused problem has no tasks with ``k == 2``.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from recycle.job import Job, Server
from recycle.plan.dependency import dependencies
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode

PHASES = (Op.F, Op.I, Op.W)

Programs: TypeAlias = Mapping[Server, list[int]]
"""The tasks of every live server in the order in which it executes them."""


class Need(msgspec.Struct, frozen=True, gc=False):
    """A task of the same micro-batch that must end ``lag`` before another starts."""

    kind: int
    stage: int
    lag: int


class Problem(msgspec.Struct, frozen=True):
    """A job, its failed servers and a mode, as tables indexed by stage.

    Attributes:
        job: the job it was made from.
        mode: what the plan may do.
        live: the pipelines with a live server, per stage, rising.
        failed: the failed servers.
        cost: time of a task of kind k at stage s is ``cost[s][k]``; a fused B costs I + W, its kind 2 costs 0.
        release: memory that a task of kind k frees when it ends, ``release[s][k]``.
        needs: what a task of kind k at stage s waits for, ``needs[s][k]``.
        kinds: tasks per micro-batch and stage: 3, or 2 where the backward is fused.
    """

    job: Job
    mode: Mode
    failed: frozenset[Server]
    live: tuple[tuple[int, ...], ...]
    cost: tuple[tuple[int, int, int], ...]
    release: tuple[tuple[int, int, int], ...]
    needs: tuple[tuple[tuple[Need, ...], ...], ...]
    kinds: int

    @property
    def total(self) -> int:
        """Micro-batches of all pipelines in one iteration."""
        return self.job.pipelines * self.job.micro_batches

    @property
    def staggered(self) -> bool:
        """True if the period is to be least, False if the makespan."""
        return self.mode.optimizer == "staggered"


def make_problem(job: Job, failed: Iterable[Server], mode: Mode) -> Problem:
    """Tables for a validated job and failed set."""
    fused = mode.backward == "fused"
    failed = frozenset(failed)
    depth = job.depth
    cost, release, needs = [], [], []
    for number, stage in enumerate(job.stages):
        rest = stage.held - stage.released_at_input_gradient
        if fused:
            cost.append((stage.forward, stage.input_gradient + stage.weight_gradient, 0))
            release.append((0, stage.held, 0))
        else:
            cost.append((stage.forward, stage.input_gradient, stage.weight_gradient))
            release.append((0, stage.released_at_input_gradient, rest))
        needs.append(
            tuple(
                tuple(
                    Need(PHASES.index(need.phase), need.stage, job.lag(number, need.stage))
                    for need in dependencies(phase, number, depth)
                )
                for phase in PHASES[: 2 if fused else 3]
            )
        )
    return Problem(
        job=job,
        mode=mode,
        failed=failed,
        live=tuple(job.live_pipelines(number, failed) for number in range(depth)),
        cost=tuple(cost),
        release=tuple(release),
        needs=tuple(needs),
        kinds=2 if fused else 3,
    )
