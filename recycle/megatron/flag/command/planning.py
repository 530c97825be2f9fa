"""Which plan a Megatron job follows: of a catalogue, or made now by what is put in for that.

Neither torch nor the planner is needed.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from recycle.errors import NoPlanError, UserError
from recycle.job import DeadServers, Job, Server, require_few_tasks
from recycle.jobfile import load_job
from recycle.megatron.flag.command.flags import Flags
from recycle.placement import Placement, interleaved, placement_text
from recycle.plan.catalogue import Catalogue
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan

Make: TypeAlias = Callable[[Job, DeadServers, Mode, float], Plan]
"""Makes a plan around dead servers within some seconds; Megatron's own order, 1F1B, where there are none."""


class Shape(NamedTuple):
    """The size of a job: D, P and M, and how many of Megatron's virtual stages each server has."""

    pipelines: int
    stages: int
    micro_batches: int
    virtual: int = 1

    @classmethod
    def of(cls, job: Job) -> "Shape":
        """That of a job."""
        return cls(job.pipelines, job.depth, job.micro_batches, len(job.stages) // job.depth)

    def require_size(self) -> None:
        """Refuse a job that is too large to be planned, before anything is made that grows with it.

        Raises:
            JobError: it is.
        """
        require_few_tasks(self.pipelines, self.stages * self.virtual, self.micro_batches)

    @property
    def placement(self) -> Placement:
        """The chunks of the model that each server of a pipeline holds."""
        return interleaved(self.stages, self.virtual)

    def __str__(self) -> str:
        each = f" of {self.virtual} virtual ones each" if self.virtual > 1 else ""
        return f"{self.pipelines} pipelines x {self.stages} stages{each} x {self.micro_batches} micro-batches"


class Source:
    """Where plans for a job come from.

    Args:
        flags: recycle's flags.
        catalogue: plans made ahead of time; None if there are none.
        shape: of the job.
        fused: why the backward pass cannot be split; empty if it can.
        make: makes plans that no catalogue has.

    Attributes:
        job: with the costs of the catalogue, or with F, I and W of equal length.
        mode: of its plans around dead servers.
        catalogue: as it was given.

    Raises:
        UserError: the job is too large, or the catalogue's plans do not fit.
    """

    def __init__(
        self, flags: Flags, catalogue: Catalogue | None, shape: Shape, fused: Sequence[str], make: Make
    ) -> None:
        shape.require_size()
        self._budget = flags.budget
        self._make = make
        self.mode = Mode("fused" if fused else "split", "staggered" if flags.stagger else "global")
        self.catalogue = catalogue
        if catalogue is None:
            sizes = {"pipelines": shape.pipelines, "stages": shape.stages, "micro_batches": shape.micro_batches}
            self.job = load_job(None, sizes | {"placement": placement_text(shape.placement), "name": "training"})
            return
        catalogue.require_lowered()
        index = catalogue.index
        self.job = index.job
        self.job.require_even("Megatron's own training code")
        if Shape.of(index.job) != shape or index.job.chunks != shape.placement:
            raise UserError(
                f"{catalogue.path}: its plans are for {Shape.of(index.job)}, and training has {shape}: make a "
                "catalogue for this job"
            )
        if index.mode.optimizer != self.mode.optimizer:
            raise UserError(
                f"{catalogue.path}: its plans are for a {index.mode.optimizer} optimizer, and training has a "
                f"{self.mode.optimizer} one: make the catalogue with --optimizer {self.mode.optimizer}, or "
                f"{'leave out' if flags.stagger else 'add'} --recycle-stagger"
            )
        if fused and index.mode.backward != "fused":
            raise UserError(f"{catalogue.path}: its plans split the backward pass, but {fused[0]}")
        # A plan that it lacks takes no more memory than those that it has.
        self.mode = index.mode

    def plan(self, dead: Iterable[Server]) -> Plan:
        """The plan around some dead servers; without any, it is Megatron's own order, 1F1B.

        Raises:
            UserError: the catalogue is damaged, or a stage has no live server.
        """
        dead = self.job.dead_servers(dead)
        if dead and self.catalogue is not None:
            with suppress(NoPlanError):
                return self.catalogue.look_up(dead).plan()
        return self.make(dead)

    def make(self, dead: DeadServers) -> Plan:
        """A plan that is made now, whatever the catalogue has: a run does not end for lack of one.

        Raises:
            NoPlanError: a stage has no live server.
        """
        return self._make(self.job, dead, self.mode, self._budget)
