"""Moves: what is asked, while a run goes on, of who decides whether chunks move; and what comes of it."""

from typing import NamedTuple, Protocol

from recycle.job import DeadServers, Job
from recycle.plan.plan import Plan


class Situation(NamedTuple):
    """What is known where it is decided whether chunks move.

    Attributes:
        plan: of the present view, with what each server holds in it.
        home: what is trained, with what each server holds while all live.
        seconds: that an iteration takes now.
        chunk: bytes of a chunk with its optimizer's state, about.
    """

    plan: Plan
    home: Job
    seconds: float
    chunk: int


class Proposal(NamedTuple):
    """What came of it.

    Attributes:
        line: the decision, with its numbers.
        plan: the one to change to, with what each server holds by it; None if nothing moves.
    """

    line: str
    plan: Plan | None


class Mover(Protocol):
    """Decides whether chunks move; it is put in from above."""

    def weigh(self, situation: Situation) -> Proposal | None:
        """Decide; None where there is nothing to decide."""

    def plan(self, job: Job, dead: DeadServers) -> Plan:
        """Plan where chunks have moved, in a time for which training can stand still."""
