"""The membership machine: what one member does about failures, without I/O, threads or clocks.

Where servers have several ranks, each of them has one. All go through the same views; the first rank of a server speaks
for it: it alone proposes and accuses.

Its owner tells it what happened and does what it answers. Everything is bound to an epoch: an event of another epoch
than the machine's is left alone, and can be told again once the machine has come there.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, ClassVar

from recycle.control.membership.decision import Lost, Missing, Survey, common_report, decide, give_up
from recycle.control.membership.events import (
    Accuse,
    Action,
    BuildFailed,
    Built,
    Decided,
    Died,
    Event,
    Exit,
    Halted,
    JoinReady,
    Noticed,
    Opened,
    Overdue,
    Paused,
    Prepare,
    Propose,
    PublishReport,
    RaiseAlarm,
    Rebuild,
    Reported,
    Resume,
    Stop,
    StoreBack,
    StoreGone,
    Unreplaced,
    WaitForJoiners,
    WarnUnprotected,
)
from recycle.control.membership.messages import Death, Report, Verdict
from recycle.control.membership.view import SOLE, Member, ServerRank, View
from recycle.holding import with_layout
from recycle.job import Job
from recycle.placement import Layout

Actions = tuple[Action, ...]


class State(Enum):
    """What a member is doing."""

    JOINING = auto()
    """It is in no view yet."""
    TRAINING = auto()
    """It is in an iteration."""
    HALTING = auto()
    """The epoch cannot go on, and the main thread is not at a safe point yet."""
    GATHERING = auto()
    """It has said what it holds, and waits for the verdict."""
    REBUILDING = auto()
    """It has a new view, and builds its groups and its state."""
    UNPROTECTED = auto()
    """It is in an iteration, and there is no store."""
    FENCED = auto()
    """It is out of the run."""
    STOPPED = auto()
    """The run is over."""


class Machine:
    """The membership of one worker: of a server, or of one of its ranks.

    It starts in no view. Who is there from the beginning is told of the opening, and reports what it holds in the epoch
    before the first; all others join. The first verdict that names a member makes it build the view's groups.

    Args:
        me: whose machine it is.
        job: what is trained.
        rank: of the server.
        loads: whether servers load checkpoints by themselves; otherwise nothing is known of these.

    Attributes:
        state: what the member is doing.
        view: the view that it is in, or that of the run while it is joining; of the opening while the run starts.
        starts: whether the run has not begun yet.
        job: what is trained, with what each server holds in the view.
    """

    def __init__(self, me: Member, job: Job, rank: ServerRank = SOLE, *, loads: bool = True) -> None:
        self.me = me
        self.state = State.JOINING
        self.job = self._home = job
        self._rank = rank
        self._loads = loads
        self._layout: Layout | None = None
        self._enter(View(-1, ()), step=0)

    @property
    def leader(self) -> Member | None:
        """Who proposes the next verdict: the first member of the view that is not known to be dead."""
        return next((member for member in self.view.members if member not in self._deaths), None)

    @property
    def leads(self) -> bool:
        """Whether this is who proposes the next verdict."""
        return self._rank.is_first and self.leader == self.me

    @property
    def waits(self) -> bool:
        """Whether it waits for somebody who takes up a stage that has no live server."""
        return bool(self._waits_for)

    @property
    def pauses(self) -> bool:
        """Whether it waits for others to halt whom no alarm has told to."""
        return self.state is State.GATHERING and not self._alarmed

    def handle(self, event: Event) -> Actions:
        """Take notice of an event, and say what is to be done about it."""
        if not self._counts(event):
            return ()
        self._seen.add(event.id)
        return self.TABLE[self.state, type(event)](self, event)

    def _counts(self, event: Event) -> bool:
        """Whether an event is news, and of this epoch or of every one."""
        return event.id not in self._seen and event.epoch in (None, self.view.epoch)

    def _enter(self, view: View, step: int) -> None:
        self.view = view
        self.starts = False
        self._step = step
        self._seen: set[str] = set()
        self._parts: dict[Member, dict[int, Report]] = {}
        # Of those all of whose ranks have reported.
        self._reports: dict[Member, Report] = {}
        self._deaths: dict[Member, Death] = {}
        # How many of the first members have all reported or died, as far as anybody has asked.
        self._accounted_for = 0
        self._joiners: dict[Member, Report] = {}
        self._alarmed = False
        self._waits_for: tuple[int, ...] = ()
        self._wish: Layout | None = None

    # The start of a run.

    def _opened(self, event: Opened) -> Actions:
        if self.me not in event.opening.view.members:
            return ()
        self._enter(event.opening.view, step=0)
        self.starts = True
        # All report anyway, and there is nothing to free anybody from.
        self._alarmed = True
        self.state = State.HALTING
        return ()

    # A failure, and the way to a safe point.

    def _fail(self, event: Noticed | BuildFailed | Died) -> Actions:
        if isinstance(event, Died):
            member = Member.parse(event.death.member)
            if member == self.me:
                return self._leave(f"was declared dead: it {event.death.reason}")
            self._deaths[member] = event.death
            if not self.view.names(member):
                return ()
            cause = f"{member} {event.death.reason}"
        else:
            cause = event.cause
        if self.state is State.UNPROTECTED:
            return self._stop(f"{cause}, and without a store no failure can be survived")
        if self.state in (State.TRAINING, State.REBUILDING):
            self.state = State.HALTING
        alarm: Actions = () if self._alarmed else (RaiseAlarm(self.view.epoch, cause),)
        self._alarmed = True
        return (*alarm, *self._consider())

    def _pause(self, event: Paused) -> Actions:
        self.state = State.HALTING
        self._wish = event.layout
        return ()

    def _halted(self, event: Halted) -> Actions:
        publish = PublishReport(event.report)
        if self.state is State.JOINING:
            return (publish,)
        self.state = State.GATHERING
        self._take_part(event.report, self._reports)
        return (publish, *self._consider())

    def _fail_joining(self, event: Died) -> Actions:
        return self._fail(event) if Member.parse(event.death.member) == self.me else ()

    # The way to a verdict.

    def _reported(self, event: Reported) -> Actions:
        self._take_part(event.report, self._reports)
        return self._consider()

    def _join_ready(self, event: JoinReady) -> Actions:
        self._take_part(event.report, self._joiners)
        return self._consider()

    def _take_part(self, report: Report, complete: dict[Member, Report]) -> None:
        """Take note of what a rank reports; with its last one, a server has."""
        member = Member.parse(report.member)
        parts = self._parts.setdefault(member, {})
        parts[report.rank] = report
        if len(parts) == self._rank.size:
            complete[member] = common_report(parts.values())

    def _overdue(self, event: Overdue) -> Actions:
        if not self._rank.is_first:
            return ()
        outcome = decide(self._home, self._survey())
        if not isinstance(outcome, Missing):
            # The leader is alive and decides nothing. Anybody may.
            return self._conclude(outcome)
        # In a mere pause, who is still in its iteration owes nothing.
        return (Accuse(event.member),) if self._alarmed and event.member in outcome.members else ()

    def _unreplaced(self, event: Unreplaced) -> Actions:
        outcome = decide(self._home, self._survey())
        return (Propose(self._give_up(outcome)),) if isinstance(outcome, Lost) else ()

    def _consider(self) -> Actions:
        if self.state is not State.GATHERING or not self.leads:
            return ()
        members = self.view.members
        # Each one is passed once, in all calls together: there may be thousands of both.
        while self._accounted_for < len(members):
            member = members[self._accounted_for]
            if member not in self._reports and member not in self._deaths:
                return ()
            self._accounted_for += 1
        outcome = decide(self._home, self._survey())
        return () if isinstance(outcome, Missing) else self._conclude(outcome)

    def _survey(self) -> Survey:
        return Survey(self.view, self._reports, self._deaths, self._joiners, self._layout, self._wish)

    def _give_up(self, lost: Lost) -> Verdict:
        return give_up(self._home, self._survey(), lost, loads=self._loads)

    def _conclude(self, outcome: Verdict | Lost) -> Actions:
        if isinstance(outcome, Verdict):
            return (Propose(outcome),)
        if self.starts or not (outcome.stages and (outcome.checkpoint or outcome.kept)):
            return (Propose(self._give_up(outcome)),)
        if outcome.stages == self._waits_for:
            return ()
        self._waits_for = outcome.stages
        return (WaitForJoiners(outcome.stages),)

    # The next epoch.

    def _decided(self, event: Decided) -> Actions:
        verdict, view = event.verdict, event.verdict.view
        if view.epoch <= self.view.epoch:
            return ()
        joining, named = self.state is State.JOINING, view.names(self.me)
        if not (named or joining):
            return self._leave(f"is not in the view of epoch {view.epoch}")
        if verdict.stop:
            self.state = State.STOPPED
            return (Stop(verdict.stop, verdict),)
        self._enter(view, verdict.step)
        self._layout, self.job = verdict.layout, with_layout(self._home, verdict.layout)
        if not named:
            return (Prepare(view),)
        self.state = State.REBUILDING
        return (Rebuild(verdict),)

    def _built(self, event: Built) -> Actions:
        self.state = State.TRAINING
        return (Resume(event.epoch, self._step),)

    # The store, and the ends.

    def _unprotect(self, event: StoreGone) -> Actions:
        self.state = State.UNPROTECTED
        return (WarnUnprotected(),)

    def _protect(self, event: StoreBack) -> Actions:
        if event.verdict.view != self.view:
            return self._leave(f"is behind: the run is in epoch {event.verdict.epoch}")
        self.state = State.TRAINING
        return ()

    def _lose_store(self, event: StoreGone) -> Actions:
        return self._stop("the store was lost before the members agreed on a view; train again from the checkpoint")

    def _leave(self, reason: str) -> Actions:
        self.state = State.FENCED
        return (Exit(f"{self.me} {reason}"),)

    def _stop(self, reason: str) -> Actions:
        self.state = State.STOPPED
        return (Stop(reason),)

    def _ignore(self, event: Event) -> Actions:
        return ()

    # What an event means in every state, in the order of the states. ``_o`` is for an event that means nothing there.
    # fmt: off
    _o = _ignore
    _ROWS: ClassVar[Mapping[type[Event], tuple[Callable[[Any, Any], Actions], ...]]] = {
        #             JOINING        TRAINING     HALTING      GATHERING    REBUILDING   UNPROTECTED  FENCED   STOPPED
        Opened:      (_opened,       _o,           _o,          _o,          _o,          _o,          _o,      _o),
        Noticed:     (_o,            _fail,       _fail,       _fail,       _fail,       _fail,       _o,      _o),
        Died:        (_fail_joining, _fail,       _fail,       _fail,       _fail,       _fail,       _o,      _o),
        Paused:       (_o,            _pause,      _o,          _o,          _o,          _o,          _o,      _o),
        Halted:      (_halted,       _o,          _halted,     _o,          _o,          _o,          _o,      _o),
        Reported:    (_o,            _reported,   _reported,   _reported,   _reported,   _o,          _o,      _o),
        JoinReady:   (_o,            _join_ready, _join_ready, _join_ready, _join_ready, _o,          _o,      _o),
        Overdue:     (_o,            _o,          _o,          _overdue,    _o,          _o,          _o,      _o),
        Unreplaced:  (_o,            _o,          _o,          _unreplaced, _o,          _o,          _o,      _o),
        Decided:     (_decided,      _decided,    _decided,    _decided,    _decided,    _o,          _o,      _o),
        Built:       (_o,            _o,          _o,          _o,          _built,      _o,          _o,      _o),
        BuildFailed: (_o,            _o,          _o,          _o,          _fail,       _o,          _o,      _o),
        StoreGone:   (_lose_store,   _unprotect,  _lose_store, _lose_store, _lose_store, _o,          _o,      _o),
        StoreBack:   (_o,            _o,          _o,          _o,          _o,          _protect,    _o,      _o),
    }
    # fmt: on
    TABLE: ClassVar[Mapping[tuple[State, type[Event]], Callable[[Any, Any], Actions]]] = {
        (state, event): handler for event, row in _ROWS.items() for state, handler in zip(State, row, strict=True)
    }
