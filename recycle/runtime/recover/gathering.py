"""Gathering: what the members of a view that is over tell each other through the store, until there is a verdict.

Who leads reads what all have to say. The others wait on one key, which is set when the leader has decided or is dead.
"""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress

import msgspec

from recycle.control.board.board import Board
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.events import Decided, Died, Event, JoinReady, Noticed, Overdue, Reported, Unreplaced
from recycle.control.membership.machine import Machine
from recycle.control.membership.messages import Alarm, Death, Opening, Report, Verdict
from recycle.control.membership.participant import participants_of
from recycle.control.membership.view import SOLE, Member, ServerRank, View
from recycle.control.store.log import LogReader
from recycle.runtime.recover.standstill import DISK
from recycle.runtime.recover.store_connection import StoreConnection

# Seconds for which who leads waits for the next entry: the longest that it overlooks one behind a hole.
LOOK = 0.05

# Seconds for which who leads lets entries come together before it reads on, for each rank that has not told yet, and
# LOOK at most: whoever looked for each of thousands would keep the store and itself from all the rest.
COMING = 1e-4

# Beats for which all others wait for it: the longest that they overlook its end if nobody could ring for it.
CALM = 4

# Seconds of waiting after which what was said is said again; each time after twice as many.
AGAIN = 2.0

# So many times ``silence`` a pause waits for joiners at most, where they have said nothing in the pauses before.
LONGEST = 4


class Gathering:
    """One member's part in it.

    Args:
        member: who this is.
        store: where members meet.
        rank: of the server.
    """

    def __init__(self, member: Member, store: StoreConnection, rank: ServerRank = SOLE) -> None:
        self._member = member
        self._rank = rank
        self._store = store
        self._ids = itertools.count()
        self._epoch: int | None = None
        # Since when is waited in that epoch: in a pause, or from an alarm on.
        self._began = 0.0
        self._pauses = False
        self._reader: LogReader[Report | Death] | None = None
        # Which ranks have said in the present view what they hold, or have died.
        self._heard: set[tuple[Member, int]] = set()
        self._outlived: View | None = None
        self._said: Report | None = None
        # After so many seconds of waiting, what was said is said again.
        self._again = 0.0
        # Pauses in a row in which joiners said nothing in time.
        self._missed = 0

    def await_opening(self) -> Opening | None:
        """With whom the run begins, once that was said; None if nobody does in the time that a start may take."""
        return self._store.board.verdicts.opening(self._store.durations.start)

    def raise_alarm(self, epoch: int, cause: str) -> Alarm:
        """Tell all that an epoch cannot go on; gives the alarm that was raised first."""
        return self._store.board.failures.raise_alarm(epoch, cause, self._rank.of(self._member))

    def publish(self, report: Report) -> None:
        """Tell all what this member holds."""
        self._said, self._again = report, AGAIN
        self._store.board.failures.publish_report(report)

    def propose(self, view: View, verdict: Verdict) -> Verdict:
        """Try to end the epoch of a view; gives the verdict that counts."""
        board = self._store.board
        heard = 0 if self._reader is None or self._epoch != view.epoch else self._reader.heard
        stored = board.verdicts.propose(msgspec.structs.replace(verdict, heard=heard))
        own = None
        if stored.epoch == view.epoch + 1:
            # Once for all, who would look for the same.
            stored = own = msgspec.structs.replace(stored, unheard=board.failures.unheard(stored))
        # Others may not know yet of all those who are dead before this one.
        board.verdicts.ring(view.epoch, view.members[: view.members.index(self._member) + 1], own)
        return stored

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
        death = Death(str(member), reason, "answer", time.monotonic())
        self._store.board.declare_dead([death], str(self._member))

    def outlive(self, view: View) -> None:
        """All members have built their groups: what only earlier epochs needed can go."""
        self._outlived = view

    def tidy(self, board: Board) -> None:
        """Delete it; for another thread, because it takes longer the more there is.

        Args:
            board: over a connection of that thread's.
        """
        view, self._outlived = self._outlived, None
        if view is not None:
            board.forget(view.epoch, view.members, self._rank.size)

    def outwait(self, members: Iterable[Member], check: Callable[[], None]) -> None:
        """Wait until agents have said of dead members that nothing of them runs any more, for ``hang`` seconds at most.

        Args:
            members: who.
            check: called meanwhile; what it raises ends the wait.
        """
        awaited = list(participants_of(members, self._rank.size))
        deadline = time.monotonic() + self._store.durations.hang
        with suppress(StoreLost):
            while awaited and time.monotonic() < deadline:
                if self._store.board.failures.wait_gone(awaited[-1], LOOK):
                    awaited.pop()
                check()

    def own_death(self) -> Died | None:
        """That this member was declared dead, where others of its ranks live by themselves and may have died."""
        death = self._store.board.failures.death(self._member) if self._rank.size > 1 else None
        return None if death is None else _died(death)

    def is_over(self, view: View) -> bool:
        """Whether nobody in a view needs help any more: all are at the end."""
        return self._store.board.end.is_reached(view)

    def look(self, machine: Machine) -> Iterator[Event]:
        """What there is to hear in a view, read while the machine is told of it.

        It takes a moment, in which others can go on. Who does not lead hears of the verdict and of the leader's death.

        Args:
            machine: that is told.

        Raises:
            StoreLost: there is no store.
        """
        board, durations, view, leader = self._store.board, self._store.durations, machine.view, machine.leader
        assert leader is not None, f"{self._member} knows of its own death"
        self._enter(view)
        waited = self._waited(machine)
        overdue = waited > (durations.start if machine.starts else durations.answer)
        verdict = None
        if machine.leads:
            patience = durations.replacement
            if machine.waits and patience is not None and waited > patience:
                yield Unreplaced(f"unreplaced/{view.epoch}", view.epoch)
            quiet = True
            time.sleep(min(LOOK, COMING * max(0, len(view.members) * self._rank.size - len(self._heard))))
            for event in self.listen(view, LOOK):
                quiet = False
                yield event
            if not quiet:
                return
        else:
            verdict = board.verdicts.await_turn(view.epoch, leader, CALM * durations.beat)
            if verdict is None and (death := board.failures.death(leader)) is not None:
                yield _died(death)
                # It may have decided before it died, and then nobody rings for the next one.
                if (board.verdicts.number() or 0) <= view.epoch:
                    return
        verdict = verdict or board.verdicts.newest(view.epoch + 1)
        if verdict is not None:
            yield Decided(f"view/{verdict.epoch}", verdict)
            return
        if waited > self._again:
            self._again = 2 * waited
            yield from self._look_again(machine)
        if overdue:
            yield from self.listen(view)
        # A member that waits for a disk cannot be interrupted.
        patient = overdue and waited <= durations.answer + DISK
        for member in view.members if overdue else ():
            if not (self._has_told(member) or (patient and board.failures.is_between(view.epoch, member))):
                yield Overdue(f"overdue/{next(self._ids)}", view.epoch, member)
        if machine.pauses and waited > durations.transfer:
            # Who comes late to a pause owes nothing, but no iteration has anybody wait for longer.
            late = next((each for each in view.members if not self._has_told(each)), leader)
            cause = f"a pause has waited for {late.server} for {durations.transfer:g} s"
            yield Noticed(f"late/{view.epoch}", view.epoch, cause)

    def _look_again(self, machine: Machine) -> Iterator[Event]:
        """Make up for what a stranger may have taken from the log: by then, it is seldom only late."""
        board, view = self._store.board, machine.view
        if not machine.leads:
            if self._said is not None and self._said.epoch == view.epoch:
                board.failures.publish_report(self._said)
            return
        for member in view.members:
            if not self._has_told(member) and (death := board.failures.death(member)) is not None:
                self._heard.update((member, rank) for rank in range(self._rank.size))
                yield _died(death)

    def listen(self, view: View, timeout: float = 0.0) -> Iterator[Event]:
        """What was told in a view since the last time, after somebody has or a time in seconds is over."""
        board = self._store.board
        for entry in self._enter(view).news(timeout):
            member = Member.parse(entry.member)
            if isinstance(entry, Death):
                self._heard.update((member, rank) for rank in range(self._rank.size))
                yield _died(entry)
                continue
            self._heard.add((member, entry.rank))
            if view.names(member):
                yield Reported(f"report/{entry.epoch}/{member}/{entry.rank}", entry)
            elif board.failures.death(member) is None:
                yield JoinReady(f"join/{entry.epoch}/{member}/{entry.rank}", entry)

    def hear_out(self, view: View, joiners: Callable[[], Collection[Member]]) -> Iterator[Event]:
        """What is told in a view until some joiners have said what they hold, or were silent for too long.

        They look at the store a few times before that. Where the store is far away or the machine busy, each pause
        waits longer than the one before, up to a limit: or no joiner would ever be let in.

        Args:
            view: which.
            joiners: who they are now.
        """
        self._enter(view)
        deadline = time.monotonic() + self._store.durations.silence * min(2**self._missed, LONGEST)
        self._missed += 1
        while time.monotonic() < deadline:
            if all(map(self._has_told, joiners())):
                self._missed = 0
                return
            yield from self.listen(view, LOOK)

    def _waited(self, machine: Machine) -> float:
        """Seconds of waiting in the present epoch; an alarm in a pause gives everybody the time to answer it."""
        if self._pauses and not machine.pauses:
            self._began = time.monotonic()
        self._pauses = machine.pauses
        return time.monotonic() - self._began

    def _has_told(self, member: Member) -> bool:
        """Whether all ranks of a member have said what they hold, or it has died."""
        return all((member, rank) in self._heard for rank in range(self._rank.size))

    def _enter(self, view: View) -> LogReader[Report | Death]:
        """The log of a view, read on from where it was left."""
        if self._reader is None or view.epoch != self._epoch:
            self._epoch, self._began, self._pauses = view.epoch, time.monotonic(), False
            self._reader = LogReader(self._store.board.failures.log(view.epoch))
            # What this rank says itself need not be heard.
            self._heard = {(self._member, self._rank.number)}
        return self._reader


def _died(death: Death) -> Died:
    return Died(f"death/{death.member}", death)
