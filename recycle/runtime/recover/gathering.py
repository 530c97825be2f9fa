"""Gathering: what the members of a view that is over tell each other through the store, until there is a verdict."""

import itertools
import time
from collections.abc import Iterable, Iterator

from recycle.control.events import Decided, Died, Event, JoinReady, Overdue, Reported
from recycle.control.machine import Machine
from recycle.control.messages import Alarm, Death, Opening, Report, Verdict
from recycle.control.view import Member, View
from recycle.runtime.recover.store_connection import StoreConnection

# Seconds from one look at the store to the next, for who decides and for who waits for that.
LEADER, OTHERS = 0.001, 0.02


class Gathering:
    """One member's part in it.

    Args:
        member: who this is.
        store: where members meet.
    """

    def __init__(self, member: Member, store: StoreConnection) -> None:
        self._member = member
        self._store = store
        self._ids = itertools.count()
        self._epoch: int | None = None
        self._began = 0.0
        self._heard: set[str] = set()

    def await_opening(self) -> Opening:
        """With whom the run begins, once that was said."""
        opening = None
        while opening is None:
            opening = self._store.board.verdicts.opening(self._store.durations.beat)
        return opening

    def raise_alarm(self, epoch: int, cause: str) -> Alarm:
        """Tell all that an epoch cannot go on; gives the alarm that was raised first."""
        return self._store.board.failures.raise_alarm(epoch, cause, str(self._member))

    def publish(self, report: Report) -> None:
        """Tell all what this member holds."""
        self._store.board.failures.publish_report(report)

    def propose(self, verdict: Verdict) -> Verdict:
        """Try to begin an epoch; gives the verdict that counts."""
        return self._store.board.verdicts.propose(verdict)

    def accuse(self, member: Member, starts: bool) -> None:
        """Declare a member dead that has not reported in time.

        Args:
            member: who.
            starts: whether the run has not begun yet.
        """
        if starts:
            reason = f"did not announce itself for {self._store.durations.start:g} s"
        else:
            reason = f"did not answer an alarm for {self._store.durations.answer:g} s"
        self._store.board.failures.publish_death(Death(str(member), reason, "answer", time.monotonic()))

    def tidy(self, view: View) -> None:
        """Delete what nobody needs any more. All members have built their groups, so all have read it."""
        board = self._store.board
        joiners = (Member.parse(each.member) for each in board.joining.requests())
        waiting = (each for each in joiners if board.failures.death(each) is None)
        board.forget(view.epoch, {*view.members, *waiting})

    def is_over(self, view: View) -> bool:
        """Whether nobody else in a view needs help any more: who is finished leaves, or has left already."""
        others = (each for each in view.members if each != self._member)
        return self._store.board.end.need_nobody(view.epoch, others)

    def look(self, machine: Machine, joiners: Iterable[JoinReady]) -> Iterator[Event]:
        """What there is to hear in a view, read while the machine is told of it; or the verdict alone.

        It takes a moment, in which others can go on: who leads looks often, and the others wait for a verdict.

        Args:
            machine: that is told.
            joiners: who is ready to be admitted; read only by who leads.

        Raises:
            StoreLost: there is no store.
        """
        board, view, leads = self._store.board, machine.view, machine.leader == self._member
        if view.epoch != self._epoch:
            self._epoch, self._began = view.epoch, time.monotonic()
            self._heard.clear()
        verdict = board.verdicts.newest(view.epoch + 1) if leads else board.verdicts.wait(view.epoch + 1, OTHERS)
        if verdict is not None:
            yield Decided(f"view/{verdict.epoch}", verdict)
            return
        durations = self._store.durations
        overdue = time.monotonic() - self._began > (durations.start if machine.starts else durations.answer)
        dead = board.failures.declared_dead()
        reported = board.failures.reported(view.epoch) if leads or overdue else frozenset()
        if leads:
            # Before the members, with whose last report everything is decided.
            yield from joiners
        for member in view.members:
            name = str(member)
            if name in dead:
                if self._is_news(death_id := f"death/{name}") and (death := board.failures.death(member)) is not None:
                    yield Died(death_id, death)
            elif name in reported:
                report_id = f"report/{view.epoch}/{name}"
                if self._is_news(report_id) and (report := board.failures.report(view.epoch, member)) is not None:
                    yield Reported(report_id, report)
            elif overdue and member != self._member:
                yield Overdue(f"overdue/{next(self._ids)}", view.epoch, member)
        if leads:
            time.sleep(LEADER)

    def _is_news(self, name: str) -> bool:
        """Whether this epoch's machine has not been told yet."""
        known = name in self._heard
        self._heard.add(name)
        return not known
