"""Which plan a Megatron job follows: of a catalogue, or made now.

Neither torch nor a solver is needed.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from recycle.errors import UserError
from recycle.job import Job, Server
from recycle.jobfile import load_job
from recycle.megatron.flag.flags import Flags
from recycle.plan.catalogue import Catalogue
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan


class Shape(NamedTuple):
    """The size of a job: D, P and M."""

    pipelines: int
    stages: int
    micro_batches: int

    @classmethod
    def of(cls, job: Job) -> "Shape":
        """That of a job."""
        return cls(job.pipelines, job.depth, job.micro_batches)

    def __str__(self) -> str:
        return f"{self.pipelines} pipelines x {self.stages} stages x {self.micro_batches} micro-batches"


class Source:
    """Where plans for a job come from.

    Args:
        flags: recycle's flags.
        shape: of the job.
        fused: why the backward pass cannot be split; empty if it can.

    Attributes:
        job: with the costs of the catalogue, or with F, I and W of equal length.
        mode: of its plans around failures.

    Raises:
        UserError: the catalogue cannot be read, or its plans do not fit.
    """

    def __init__(self, flags: Flags, shape: Shape, fused: Sequence[str]) -> None:
        self._budget = flags.budget
        self.mode = Mode("fused" if fused else "split", "staggered" if flags.staggered else "global")
        self._catalogue = None if flags.catalogue is None else Catalogue(flags.catalogue)
        if self._catalogue is None:
            self.job = load_job(None, shape._asdict() | {"name": "training"})
            return
        index = self._catalogue.index
        self.job = index.job
        if Shape.of(index.job) != shape:
            raise UserError(
                f"{flags.catalogue}: its plans are for {Shape.of(index.job)}, and training has {shape}: make a "
                "catalogue for this job"
            )
        if index.mode.optimizer != self.mode.optimizer:
            raise UserError(
                f"{flags.catalogue}: its plans are for a {index.mode.optimizer} optimizer, and training has a "
                f"{self.mode.optimizer} one: make the catalogue with --optimizer {self.mode.optimizer}, or "
                f"{'leave out' if flags.staggered else 'add'} --recycle-stagger"
            )
        if fused and index.mode.backward != "fused":
            raise UserError(f"{flags.catalogue}: its plans split the backward pass, but {fused[0]}")

    def plan(self, failed: Collection[Server]) -> Plan:
        """The plan around some failed servers; without any, it is Megatron's own order, 1F1B.

        Raises:
            UserError: there is no such plan.
        """
        failed = self.job.failed_set(failed)
        if not failed:
            return stock_order(self.job, self.mode)
        if self._catalogue is not None:
            return self._catalogue.look_up(failed).plan()
        from recycle.planner.anneal.improve import MaxSeconds
        from recycle.planner.make import Effort, make_plan

        return make_plan(self.job, failed, self.mode, Effort((MaxSeconds(self._budget),), f"{self._budget:g} s"))


def stock_order(job: Job, mode: Mode) -> Plan:
    """The order of Megatron's own schedule, 1F1B, as a plan; gradients add up in the same order, to the bit.

    Args:
        job: with all servers.
        mode: of plans around failures, whose optimizer this one has as well.
    """
    import msgspec

    from recycle.plan.clock import run_clock
    from recycle.planner.anneal.improve import MaxMoves
    from recycle.planner.greedy.published import one_forward_one_backward
    from recycle.planner.lowering import instructions, lower
    from recycle.planner.make import Effort, make_plan
    from recycle.planner.problem import make_problem

    mode = Mode("fused", mode.optimizer)
    searched = make_plan(job, (), mode, Effort((MaxMoves(1),), "1 move"))
    problem = make_problem(job, (), mode)
    lists = instructions(problem, one_forward_one_backward(problem))
    clock = run_clock(job, mode, lists)
    status = "optimal" if clock.period == searched.bound else "bounded"
    return msgspec.structs.replace(
        searched,
        makespan=clock.makespan,
        period=clock.period,
        provenance=msgspec.structs.replace(searched.provenance, planner="1F1B", budget="none", status=status),
        programs={server: tuple(program) for server, program in lower(job, mode, lists).items()},
    )
