"""Pacing: members tell from time to time how long they take for what they compute, and who leads compares them."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from recycle.control.membership.messages import Pace, Verdict
from recycle.control.membership.view import Member, View
from recycle.job import Server
from recycle.record.recorder import Recorder
from recycle.record.speeds import LEAST, shares_of
from recycle.runtime.recover.store_connection import StoreConnection

LONGEST = 16 * LEAST
"""Iterations after which a member tells anew, at most."""

SECOND = 1e9
"""In the recorder's nanoseconds."""


class Pacing:
    """A member's part in it. All methods are for the main thread.

    Each time it takes twice as many iterations, also in views in which nothing but the placement is new: on a machine
    whose clocks say one thing now and another one soon, layers would move all the time. It begins anew where somebody
    computes who has not before.

    Args:
        member: who this is.
        store: where members meet.
        recorder: what this member executed in the iteration that was made last.
    """

    def __init__(self, member: Member, store: StoreConnection, recorder: Recorder) -> None:
        self._member = member
        self._store = store
        self._recorder = recorder
        self._view: View | None = None
        self._idle: frozenset[Member] = frozenset()
        self._window = LEAST
        self._seen: dict[str, list[float]] = defaultdict(list)
        self._iterations = 0
        self._awaited: int | None = None

    def begin(self, verdict: Verdict) -> None:
        """A view has begun."""
        before, self._idle = self._idle, _without_chunks(verdict)
        if verdict.deaths or verdict.joined or before - self._idle:
            self._window = LEAST
        self._view = verdict.view
        self._forget()
        self._awaited = None

    def look(self, step: int) -> Mapping[Server, float]:
        """After an iteration, of which all members come here.

        Args:
            step: the iteration that is next.

        Returns:
            The share of its peers' speed that each server has shown, on the member that leads, once everybody has told
            it; else nothing.

        Raises:
            StoreLost: there is no store.
        """
        view = self._view
        assert view is not None, "no view has begun"
        self._note()
        board, leads = self._store.board.paces, view.members[0] == self._member
        if self._iterations == self._window:
            seconds = {task: median(each) for task, each in self._seen.items()}
            self._window = min(LONGEST, 2 * self._window)
            self._forget()
            self._awaited = step if leads else None
            board.tell(Pace(str(self._member), view.epoch, step, seconds))
        if self._awaited is None:
            return {}
        told = [each for each in board.of_all(view) if each.until == self._awaited]
        if len(told) < len(view.members):
            return {}
        self._awaited = None
        return shares_of({Member.parse(each.member).server: each.seconds for each in told})

    def _note(self) -> None:
        times: dict[str, list[float]] = defaultdict(list)
        for entry in self._recorder.entries:
            instruction = entry.instruction
            if instruction.op.is_compute:
                times[f"{instruction.stage}{instruction.op.value}"].append((entry.end - entry.start) / SECOND)
        for task, each in times.items():
            self._seen[task].append(median(each))
        self._iterations += 1

    def _forget(self) -> None:
        self._seen.clear()
        self._iterations = 0


def _without_chunks(verdict: Verdict) -> frozenset[Member]:
    """The members of a view that hold nothing."""
    layout, members = verdict.layout, verdict.view.members
    if layout is None:
        return frozenset()
    return frozenset(each for each in members if not layout[each.server.pipeline].servers[each.server.stage].chunks)
