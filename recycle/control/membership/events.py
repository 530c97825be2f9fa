"""What a membership machine is told, and what it answers."""

import msgspec

from recycle.control.membership.messages import Death, Opening, Report, Verdict
from recycle.control.membership.view import Member, View
from recycle.placement import Layout


class Event(msgspec.Struct, frozen=True, tag=True):
    """Something that happened.

    Attributes:
        id: what its source calls it; an event that is told twice counts once.
    """

    id: str

    @property
    def epoch(self) -> int | None:
        """The epoch in which it counts; None for what counts in every epoch: deaths, verdicts, and the store's fate."""
        return None


class Opened(Event, frozen=True):
    """This member is ready, and a run is about to begin.

    Attributes:
        opening: with whom.
    """

    opening: Opening


class Noticed(Event, frozen=True):
    """The epoch cannot go on: something failed here, or an alarm was seen.

    Attributes:
        epoch: which.
        cause: what happened.
    """

    epoch: int
    cause: str


class OfReport(Event, frozen=True):
    """A member says what it holds.

    Attributes:
        report: its message.
    """

    report: Report

    @property
    def epoch(self) -> int:
        """The epoch in which it counts."""
        return self.report.epoch


class Halted(OfReport, frozen=True):
    """The main thread is at a safe point, and these versions of the state are whole. Of a joiner: it is ready."""


class Reported(OfReport, frozen=True):
    """Another member has halted."""


class JoinReady(OfReport, frozen=True):
    """A new member is ready to be admitted."""


class Died(Event, frozen=True):
    """A member was declared dead.

    Attributes:
        death: the declaration.
    """

    death: Death


class Decided(Event, frozen=True):
    """There is a verdict.

    Attributes:
        verdict: the one in the store.
    """

    verdict: Verdict


class Built(Event, frozen=True):
    """This member's process groups stand, and it holds the version that the verdict names.

    Attributes:
        epoch: whose.
    """

    epoch: int


class BuildFailed(Event, frozen=True):
    """The process groups or the state of an epoch could not be had.

    Attributes:
        epoch: whose.
        cause: why.
    """

    epoch: int
    cause: str


class Overdue(Event, frozen=True):
    """The time is up in which a member must have reported, or, if all have, the leader have decided.

    Attributes:
        epoch: in which epoch.
        member: who is late.
    """

    epoch: int
    member: Member


class Unreplaced(Event, frozen=True):
    """The time is up in which somebody must have taken up a stage that has no live server.

    Attributes:
        epoch: in which epoch.
    """

    epoch: int


class Paused(Event, frozen=True):
    """The main thread is at the boundary before which all were asked to halt, so that joiners can be admitted.

    Attributes:
        epoch: in which epoch.
        step: the iteration that was to begin.
        layout: who is to hold what from here on, if this member leads and has found something better; None if not.
    """

    epoch: int
    step: int
    layout: Layout | None = None


class StoreGone(Event, frozen=True):
    """The store does not answer any more."""


class StoreBack(Event, frozen=True):
    """There is a store again, and everybody's current verdict was proposed to it.

    Attributes:
        verdict: the one that it holds.
    """

    verdict: Verdict


class Action(msgspec.Struct, frozen=True, tag=True):
    """Something that the machine's owner must do, in the order given."""


class RaiseAlarm(Action, frozen=True):
    """Tell all that the epoch cannot go on; while HALTING, bring the main thread to a safe point, and say Halted.

    Attributes:
        epoch: which.
        cause: why.
    """

    epoch: int
    cause: str


class PublishReport(Action, frozen=True):
    """Tell all what this member holds.

    Attributes:
        report: the message.
    """

    report: Report


class Propose(Action, frozen=True):
    """Try to make this the verdict, and say Decided with the one that counts.

    Attributes:
        verdict: the proposal.
    """

    verdict: Verdict


class Accuse(Action, frozen=True):
    """Declare a member dead that has not answered in time.

    Attributes:
        member: who.
    """

    member: Member


class Rebuild(Action, frozen=True):
    """Build the groups of a new view and bring the state to a version; then say Built or BuildFailed.

    A member that lacks the version copies it from a peer of its stage, and keeps the version before or after it if it
    has that: until Resume, the members may still have to agree on another one.

    Attributes:
        verdict: which view, which version, and where both its plan and the state of who lacks it come from.
    """

    verdict: Verdict


class Resume(Action, frozen=True):
    """Begin an iteration. A version newer than its number is undone, and is discarded now.

    Attributes:
        epoch: in which epoch.
        step: which iteration.
    """

    epoch: int
    step: int


class Prepare(Action, frozen=True):
    """A joiner: the run is in this view now. Get a state from a peer in it, or none, then say Halted.

    What was copied in an earlier epoch may have been undone since, so it does not count any more.

    Attributes:
        view: the view of the run.
    """

    view: View


class WaitForJoiners(Action, frozen=True):
    """The run needs new servers, and restores its checkpoint when they have come.

    Attributes:
        stages: of which stages.
    """

    stages: tuple[int, ...]


class WarnUnprotected(Action, frozen=True):
    """Tell the user that from now on a failure ends the run; a checkpoint is due at the next boundary."""


class Exit(Action, frozen=True):
    """End this process: it is not in the run any more, and the run goes on without it.

    Attributes:
        reason: why.
    """

    reason: str


class Stop(Action, frozen=True):
    """End this process: the run cannot go on.

    Attributes:
        reason: why.
        verdict: that says so; None where the members agreed on none.
    """

    reason: str
    verdict: Verdict | None = None
