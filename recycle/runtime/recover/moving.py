"""Moving: who leads looks for better places of the chunks while training goes on."""

import threading
import time
from collections.abc import Callable

import msgspec

from recycle.control.messages import Verdict
from recycle.control.view import Member
from recycle.holding import Layout
from recycle.job import Job
from recycle.plan.moves import Mover, Proposal, Seen, Situation
from recycle.plan.plan import Plan

MEASURED = 3
"""Iterations of a view after which is known how long one takes."""


class Moving:
    """A member's part in it. All methods are for the main thread; who leads decides in a thread of its own.

    Args:
        member: who this is.
        home: what is trained, with who holds what where nobody is dead.
        mover: decides; None where nothing moves.
        tell: gets the decision.
        size: bytes of a chunk with its optimizer's state, about.
    """

    def __init__(
        self, member: Member, home: Job, mover: Mover | None, tell: Callable[[str], None], size: Callable[[], int]
    ) -> None:
        self.plan: Plan | None = None
        self._member = member
        self._home = home
        self._mover = mover
        self._tell = tell
        self._size = size
        self._seen = Seen()
        self._since = time.monotonic()
        self._view_plan: Plan | None = None
        self._durations: list[float] = []
        self._last = 0.0
        self._leads = False
        self._work: _Work | None = None

    @property
    def layout(self) -> Layout | None:
        """Who is to hold what, if this member has found something better."""
        if self.plan is None or isinstance(self.plan.job.layout, msgspec.UnsetType):
            return None
        return self.plan.job.layout

    def begin(self, verdict: Verdict, plan: Plan) -> None:
        """A view has begun: what was found for another one is of no use."""
        before = self._view_plan
        now = time.monotonic()
        if before is not None:
            self._count(before, now)
        self._since = now
        seen = self._seen
        self._seen = seen._replace(
            failures=seen.failures + len(verdict.deaths), repairs=seen.repairs + len(verdict.joined)
        )
        self._view_plan, self.plan, self._work = plan, None, None
        self._durations, self._last = [], 0.0
        self._leads = verdict.view.members[0] == self._member

    def look(self) -> bool:
        """After an iteration; whether there is news of something better."""
        if self._mover is None or self._view_plan is None or not self._leads:
            return False
        now = time.monotonic()
        if self._last:
            self._durations.append(now - self._last)
        self._last = now
        if self._work is None and len(self._durations) >= MEASURED:
            self._count(self._view_plan, now)
            self._since = now
            seconds = sorted(self._durations)[len(self._durations) // 2]
            situation = Situation(self._view_plan, self._home, seconds, self._size(), self._seen)
            self._work = _Work(self._mover, situation)
        if self._work is None or (proposal := self._work.take()) is None:
            return False
        self._tell(proposal.line)
        self.plan = proposal.plan
        return self.plan is not None

    def _count(self, plan: Plan, now: float) -> None:
        seconds, seen = now - self._since, self._seen
        dead = len(plan.dead)
        live = len(plan.job.servers()) - dead
        self._seen = seen._replace(
            seconds=seen.seconds + seconds, live=seen.live + seconds * live, dead=seen.dead + seconds * dead
        )


class _Work:
    """A decision that is being made in a thread of its own."""

    def __init__(self, mover: Mover, situation: Situation) -> None:
        self._proposal: Proposal | None = None
        self._mover = mover
        self._situation = situation
        self._thread = threading.Thread(target=self._run, name="weighing moves", daemon=True)
        self._thread.start()

    def take(self) -> Proposal | None:
        """What came of it, once."""
        if self._thread.is_alive():
            return None
        proposal, self._proposal = self._proposal, None
        return proposal

    def _run(self) -> None:
        self._proposal = self._mover.weigh(self._situation)
