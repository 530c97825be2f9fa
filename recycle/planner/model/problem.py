"""The planning problem in plain integers: what the schedulers and the solver read, and what they return.

Schedulers see tasks. The task of phase ``k`` (0 is F, 1 is I, or B where the backward is fused, 2 is W) of the
micro-batch ``(home, m)`` at a stage is the integer ``(home * micro_batches + m) * 3 + k`` in the program of a server of
that stage; a fused problem has no tasks with ``k == 2``. Of a server's second chunk the micro-batches are numbered
behind those of all pipelines for its first, and so on: ``(slot * total + home * micro_batches + m) * 3 + k``.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from recycle.holding import holders, placed
from recycle.job import DeadServers, Job, Server
from recycle.plan.dependency import dependencies
from recycle.plan.instruction import Op
from recycle.plan.memory import MemoryChange, first_excess, memory_changes
from recycle.plan.mode import Mode

PHASES = (Op.F, Op.I, Op.W)
FUSED = (Op.F, Op.B)

Programs: TypeAlias = Mapping[Server, list[int]]
"""The tasks of every live server in the order in which it executes them."""


class Need(msgspec.Struct, frozen=True, gc=False):
    """A task of the same micro-batch that must end ``lag`` before another starts.

    Chunks that are on one server in every pipeline have no lag: planners keep their micro-batches together.
    """

    kind: int
    stage: int
    lag: int


class Problem(msgspec.Struct, frozen=True):
    """A job, its dead servers and a mode, as tables indexed by stage: by chunk, where servers hold several.

    Attributes:
        job: the job it was made from.
        mode: what the plan may do.
        dead: the dead servers; every stage has a live one.
        cost: time of a task of kind k at stage s is ``cost[s][k]``; a fused B costs I + W, its kind 2 costs 0.
        acquire: memory that a task of kind k takes when it starts, ``acquire[s][k]``.
        release: memory that a task of kind k frees when it ends, ``release[s][k]``.
        needs: what a task of kind k at stage s waits for, ``needs[s][k]``.
        kinds: tasks per micro-batch and stage: 3, or 2 where the backward is fused.
    """

    job: Job
    mode: Mode
    dead: DeadServers
    cost: tuple[tuple[int, int, int], ...]
    acquire: tuple[tuple[int, int, int], ...]
    release: tuple[tuple[int, int, int], ...]
    needs: tuple[tuple[tuple[Need, ...], ...], ...]
    kinds: int

    def kept(self, chunk: int) -> list[int]:
        """Of what F takes at a chunk, the memory that is held until a task of each kind ends.

        What else the last of them frees, I has taken.
        """
        kept = list(self.release[chunk])
        kept[self.kinds - 1] -= self.acquire[chunk][1]
        return kept

    def reserve(self, chunks: Iterable[int]) -> int:
        """Memory that a server of some chunks leaves free at each F, so that it can run an I, if need be behind W."""
        return max((self.acquire[chunk][1] for chunk in chunks), default=0)

    @property
    def live(self) -> tuple[tuple[int, ...], ...]:
        """The pipelines with a live server, per place in them, rising; at least one for every place.

        Per chunk, where pipelines are not alike.
        """
        return self.dead.live

    @property
    def total(self) -> int:
        """Numbers of micro-batches in one iteration: some are of none, where pipelines bring fewer than others."""
        return self.job.pipelines * self.job.micro_batches

    @property
    def units(self) -> list[int]:
        """The numbers ``home * micro_batches + m`` of the micro-batches that there are."""
        width = self.job.micro_batches
        return [home * width + number for home, load in enumerate(self.job.loads) for number in range(load)]

    @property
    def servers(self) -> list[Server]:
        """The live servers, in order."""
        return [server for server in self.job.servers() if server not in self.dead]

    @property
    def tasks(self) -> int:
        """Tasks of all servers in one iteration."""
        return sum(self.job.loads) * len(self.job.stages) * self.kinds

    @property
    def ops(self) -> tuple[Op, ...]:
        """What a task of each kind is as an instruction."""
        return PHASES if self.kinds == 3 else FUSED

    def fits(self, place: int, tasks: Iterable[int]) -> bool:
        """Whether a server at a place of its pipeline has the memory for its tasks in this order."""
        ops, total, chunks = self.ops, self.total, self.job.chunks[place]
        return (
            first_excess(self.job, Server(0, place), ((chunks[task // 3 // total], ops[task % 3]) for task in tasks))
            is None
        )

    def hosts(self, place: int, home: int) -> tuple[int, ...]:
        """The pipelines whose server at a place may execute the micro-batches of a home, rising."""
        return self.mode.hosts(home, self.live[place])

    def least_share(self, place: int) -> int:
        """How many micro-batches the busiest live server of a place executes at least."""
        return -(-self.total // len(self.live[place]))

    @property
    def groups(self) -> list[range]:
        """Micro-batches ``home * micro_batches + m`` that differ by their number only."""
        size = self.job.micro_batches if self.mode.keeps_home else self.total
        return [range(first, first + size) for first in range(0, self.total, size)]

    @property
    def intact(self) -> bool:
        """True if the dead hold nothing, so that no micro-batch has to leave its pipeline."""
        return not any(placed(self.job, each).chunks for each in self.dead)

    @property
    def alike(self) -> bool:
        """True if nothing tells pipelines apart: what is best for one of them alone is best for all."""
        return self.mode.keeps_home and not self.dead and self.job.even

    @property
    def staggered(self) -> bool:
        """True if the period is to be least, False if the makespan."""
        return self.mode.optimizer == "staggered"


def one_pipeline(problem: Problem, micro_batches: int) -> Problem:
    """A problem's pipelines without failures, one of them alone, with some number of micro-batches."""
    job = msgspec.structs.replace(problem.job, pipelines=1, micro_batches=micro_batches)
    return make_problem(job, (), problem.mode)


def make_problem(job: Job, dead: Iterable[Server], mode: Mode) -> Problem:
    """Tables for a job.

    Raises:
        JobError: a dead server is none of the job's, or the job is too large to be planned.
        NoPlanError: a stage has no live server.
    """
    job.require_size()
    dead = job.dead_servers(dead)
    dead.require_peers()
    fused = mode.backward == "fused"
    depth, peers = len(job.stages), holders(job)
    ops = FUSED if fused else PHASES
    cost, changes, needs = [], [], []
    for number, stage in enumerate(job.stages):
        rules = memory_changes(stage)
        changes.append([rules[op] for op in ops] + [MemoryChange(0, 0)] * (3 - len(ops)))
        if fused:
            cost.append((stage.forward, stage.input_gradient + stage.weight_gradient, 0))
        else:
            cost.append((stage.forward, stage.input_gradient, stage.weight_gradient))
        needs.append(
            tuple(
                tuple(
                    Need(
                        PHASES.index(need.phase),
                        need.stage,
                        0 if peers[need.stage] == peers[number] else job.lag(number, need.stage),
                    )
                    for need in dependencies(phase, number, depth)
                )
                for phase in PHASES[: 2 if fused else 3]
            )
        )
    return Problem(
        job=job,
        mode=mode,
        dead=dead,
        cost=tuple(cost),
        acquire=tuple((first.taken, second.taken, third.taken) for first, second, third in changes),
        release=tuple((first.freed, second.freed, third.freed) for first, second, third in changes),
        needs=tuple(needs),
        kinds=2 if fused else 3,
    )
