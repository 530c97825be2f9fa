"""Admission: what members do for those who join, and what who joins does to be admitted."""

import time
from contextlib import suppress

from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Verdict, complete_requests
from recycle.control.membership.view import SOLE, Member, ServerRank, View
from recycle.job import Job
from recycle.runtime.errors import ViewBroken
from recycle.runtime.join.copying import Copying
from recycle.runtime.join.following import Joining
from recycle.runtime.join.serving import Serving
from recycle.runtime.recover.alarm_watch import AlarmWatch
from recycle.runtime.recover.store_connection import StoreConnection
from recycle.runtime.step.trainee import Followable, Movable


class AdmissionPause(ViewBroken):
    """Nothing is broken: all halt at a boundary, so that others can come in."""


class Admission:
    """A member's part in it. Where its training cannot be followed, who joins gets its state in the pause.

    Args:
        member: who this is.
        followed: its training, as it is served to a joiner; None where that cannot be done.
        store: where members meet.
        alarm_watch: knows who asks to be let in.
        rank: of the server.
        chunks: of its training, where they can be copied to others; None where they cannot.
    """

    def __init__(
        self,
        member: Member,
        followed: Followable | None,
        store: StoreConnection,
        alarm_watch: AlarmWatch,
        rank: ServerRank = SOLE,
        chunks: Movable | None = None,
    ) -> None:
        endpoint, durations = store.endpoint, store.durations
        self._member = member
        self._rival: tuple[Member, float] | None = None
        self._ranks = rank.size
        self._store = store
        self._alarm_watch = alarm_watch
        self._serving = None if followed is None else Serving(member, followed, endpoint, durations, rank.number)
        self._copying = Copying(member, chunks, endpoint, durations)
        self._joining = Joining(member, followed, endpoint, durations, rank.number)

    # A member, while it trains.

    @property
    def is_asked_for(self) -> bool:
        """Whether somebody is ready, so that all should pause to let it in."""
        return bool(complete_requests(self._alarm_watch.requests, self._ranks))

    def serve(self, view: View, job: Job) -> None:
        """Begin to serve who asks for it, and to copy what was ordered; between two iterations.

        Args:
            view: of the member.
            job: what is trained, with what each server holds in it.
        """
        if self._serving is not None:
            self._serving.look(view, self._alarm_watch.requests)
        with suppress(StoreLost):
            self._copying.look(job, view, self._alarm_watch.order, self._store.board)

    def finish(self) -> None:
        """All members pause here, so who is served gets what it lacks."""
        if self._serving is not None:
            self._serving.finish()
        self._copying.finish()

    def abort(self) -> None:
        """Serve nobody any more, and copy nothing."""
        if self._serving is not None:
            self._serving.abort()
        self._copying.abort()

    # A member, in a pause or a recovery.

    def expected(self, epoch: int) -> frozenset[Member]:
        """Those who are ready to be let in, and so are about to say what they hold."""
        board = self._store.board
        ready = complete_requests(board.joining.requests(epoch), self._ranks)
        return frozenset(joiner for joiner in ready if board.failures.death(joiner) is None)

    # Who joins.

    @property
    def is_ready(self) -> bool:
        """Whether it can be admitted in the view that it asked in, be it with nothing."""
        return self._joining.ready

    @property
    def has_arrived(self) -> bool:
        """Whether it holds the version before whose iteration the members pause."""
        return self._joining.arrived

    def find_rival(self, view: View) -> Member | None:
        """Who has taken this member's place in a view and is alive, as one does whose server was started twice.

        It may have died, and the others have not missed it yet. So it is one only after the time that they take.

        Raises:
            StoreLost: there is no store.
        """
        now = time.monotonic()
        taken = next((each for each in view.members if each.server == self._member.server), None)
        if taken is None or taken == self._member or self._store.board.failures.death(taken) is not None:
            self._rival = None
        elif self._rival is None or self._rival[0] != taken:
            self._rival = taken, now
        elif now > self._rival[1] + self._store.durations.missed:
            return taken
        return None

    def prepare(self, view: View) -> None:
        """Ask to be let into the run, which is in a view now."""
        self._joining.begin(view, self._store.board)

    def follow(self) -> bool:
        """Wait a moment while the state comes; whether this member is ready after it."""
        self._joining.repeat(self._store.board)
        return self._joining.wait(self._store.board)

    def verdict(self, epoch: int) -> Verdict | None:
        """The verdict that has followed an epoch, if there is one."""
        return self._store.board.verdicts.newest(epoch + 1)

    def await_verdict(self, epoch: int) -> Verdict | None:
        """The same, after a moment of waiting for it."""
        self._joining.repeat(self._store.board)
        return self._store.board.verdicts.wait(epoch + 1, self._store.durations.beat)

    def end_joining(self) -> None:
        """There is a new verdict: the training is free."""
        self._joining.stop()
