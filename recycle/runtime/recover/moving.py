"""Moving: who leads looks for better places of the chunks while training goes on."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from statistics import median

import msgspec

from recycle.control.membership.messages import Verdict
from recycle.control.membership.view import Member
from recycle.job import Job
from recycle.placement import Layout
from recycle.plan.moves import Mover, Proposal, Situation
from recycle.plan.plan import Plan
from recycle.threads import start_call

MEASURED = 3
"""Iterations of a view after which is known how long one takes."""


class Moving:
    """A member's part in it. All methods are for the main thread; who leads decides in a thread of its own.

    Args:
        member: who this is.
        home: what is trained, with what each server holds while all live.
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
        self._view_plan: Plan | None = None
        self._durations: list[float] = []
        self._last = 0.0
        self._leads = False
        self._weighed = False
        self._work: Future[Proposal | None] | None = None

    @property
    def layout(self) -> Layout | None:
        """Who is to hold what, if this member has found something better."""
        if self.plan is None or isinstance(self.plan.job.layout, msgspec.UnsetType):
            return None
        return self.plan.job.layout

    def begin(self, verdict: Verdict, plan: Plan) -> None:
        """A view has begun: what was found for another one is of no use."""
        self._view_plan, self.plan, self._work = plan, None, None
        self._weighed = False
        self._durations.clear()
        self._last = 0.0
        self._leads = verdict.view.members[0] == self._member

    def look(self) -> bool:
        """After an iteration; whether there is news of something better."""
        mover, plan = self._mover, self._view_plan
        if mover is None or plan is None or not self._leads or self._weighed:
            return False
        if self._work is None:
            now = time.monotonic()
            if self._last:
                self._durations.append(now - self._last)
            self._last = now
            if len(self._durations) == MEASURED:
                situation = Situation(plan, self._home, median(self._durations), self._size())
                self._work = start_call(partial(mover.weigh, situation), "weighs moves")
            return False
        if not self._work.done():
            return False
        self._weighed = True
        try:
            proposal = self._work.result()
        except Exception as error:  # training goes on as it is
            self._tell(f"layers stay where they are: no better places can be looked for ({error or repr(error)})")
            return False
        if proposal is None:
            return False
        self._tell(proposal.line)
        self.plan = proposal.plan
        return self.plan is not None
