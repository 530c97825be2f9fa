"""The plan: an instruction list per live server, with everything one needs to judge it."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from recycle.errors import PlanFileError
from recycle.job import DeadServers, Job, Server
from recycle.plan.instruction import Instruction
from recycle.plan.mode import Mode

Form: TypeAlias = Literal["compute", "lowered"]
"""Whether a plan holds F, I, W and B only, or transfers, REDUCE and STEP as well."""


SOLVER = "exact solver"
"""What proved a bound that the rules do not prove."""


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a plan came from.

    Attributes:
        planner: the method that made the order.
        seed: of its random choices.
        budget: what it was allowed, as given.
        bound_by: the rule that proved the bound, or ``SOLVER``.
        status: ``optimal`` if the period equals the bound, ``bounded`` otherwise.
    """

    planner: str
    seed: int
    budget: str
    bound_by: str
    status: Literal["optimal", "bounded"]


class Plan(msgspec.Struct, frozen=True):
    """What every live server does in one iteration.

    Attributes:
        job: the job, with the costs and limits that the plan was made for.
        dead: the servers that are dead.
        roles: live servers that act as another server of their stage; every other server acts as itself. Peers hold
            the same parameters, so taking a peer's role costs nothing.
        mode: what the plan was allowed to do.
        form: whether transfers, REDUCE and STEP are among the instructions.
        makespan: end of the last compute instruction if all servers start at 0.
        period: time per iteration in the steady state, optimizer included.
        bound: proven lower bound on the period of any plan for this job, dead servers and mode.
        baseline: period of the fault-free 1F1B schedule of the job under the same limits.
        provenance: who made it.
        programs: instructions in execution order, per live server.
    """

    job: Job
    dead: DeadServers
    roles: Mapping[Server, Server]
    mode: Mode
    form: Form
    makespan: int
    period: int
    bound: int
    baseline: int
    provenance: Provenance
    programs: Mapping[Server, tuple[Instruction, ...]]

    def partners(self, server: Server) -> frozenset[Server]:
        """Whom a live server sends results to or receives them from."""
        return frozenset(each.peer for each in self.programs[server] if each.peer is not None)

    def require_lowered(self, source: str, remedy: str = "make the plan again") -> None:
        """Refuse a plan that no server can run.

        Args:
            source: what to call the plan.
            remedy: how it gets transfers.

        Raises:
            PlanFileError: it has no transfers.
        """
        if self.form != "lowered":
            raise PlanFileError(f"{source}: its form is 'compute', which has no transfers: {remedy}")

    @property
    def gap(self) -> float:
        """How far the period is above the bound, as a share of the bound."""
        return self.period / self.bound - 1 if self.bound else 0.0

    @property
    def throughput(self) -> float:
        """Against the fault-free 1F1B schedule, which has 1."""
        return self.baseline / self.period if self.period else 1.0
