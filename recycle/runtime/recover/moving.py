"""Moving: who leads looks for better places of the chunks while training goes on."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec

from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Verdict
from recycle.control.membership.view import Member
from recycle.job import Job
from recycle.placement import Layout
from recycle.plan.moves import Mover, Proposal, Seen, Situation
from recycle.plan.plan import Plan
from recycle.runtime.recover.store_connection import StoreConnection
from recycle.threads import start_thread

MEASURED = 3
"""Iterations of a view after which is known how long one takes."""

RECENT = 15
"""Iterations of which that is the median, at most."""


class Moving:
    """A member's part in it. All methods are for the main thread; who leads decides in a thread of its own.

    Args:
        member: who this is.
        home: what is trained, with what each server holds while all live.
        mover: decides; None where nothing moves.
        tell: gets the decision.
        size: bytes of a chunk with its optimizer's state, about.
        store: where what the run has seen outlives who leads.
    """

    def __init__(
        self,
        member: Member,
        home: Job,
        mover: Mover | None,
        tell: Callable[[str], None],
        size: Callable[[], int],
        store: StoreConnection,
    ) -> None:
        self.plan: Plan | None = None
        self._member = member
        self._home = home
        self._mover = mover
        self._tell = tell
        self._size = size
        self._store = store
        self._seen = Seen()
        self._since = time.monotonic()
        self._view_plan: Plan | None = None
        self._durations = deque[float](maxlen=RECENT)
        self._last = 0.0
        self._leads = False
        self._weighed = False
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
        self._weighed = False
        self._durations.clear()
        self._last = 0.0
        self._leads = verdict.view.members[0] == self._member

    def look(self) -> bool:
        """After an iteration; whether there is news of something better."""
        if self._mover is None or self._view_plan is None or not self._leads or self.plan is not None:
            return False
        now = time.monotonic()
        if self._last:
            self._durations.append(now - self._last)
        self._last = now
        if self._work is None and len(self._durations) >= MEASURED and not self._weighed:
            self._count(self._view_plan, now)
            self._since = now
            with suppress(StoreLost):
                self._seen = self._store.board.paces.longest(self._seen)
            seconds = sorted(self._durations)[len(self._durations) // 2]
            situation = Situation(self._view_plan, self._home, seconds, self._size(), self._seen)
            self._work = _Work(self._mover, situation)
            self._weighed = True
        if self._work is None or self._work.goes_on:
            return False
        proposal, self._work = self._work.proposal, None
        if proposal is None:
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
    """A decision that is being made in a thread of its own.

    Attributes:
        proposal: what came of it.
    """

    def __init__(self, mover: Mover, situation: Situation) -> None:
        self.proposal: Proposal | None = None
        self._mover = mover
        self._situation = situation
        self._thread = start_thread(self._run, "weighing moves")

    @property
    def goes_on(self) -> bool:
        """Whether nothing has come of it yet."""
        return self._thread.is_alive()

    def _run(self) -> None:
        self.proposal = self._mover.weigh(self._situation)
