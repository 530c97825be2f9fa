"""Members without a training: real machine, board and gathering, over a store that counts what is asked of it."""

import time
from types import SimpleNamespace
from typing import Any, NamedTuple, Self, cast

from recycle.control.board.board import Board
from recycle.control.membership.durations import Durations
from recycle.control.membership.events import (
    Action,
    Built,
    Decided,
    Event,
    Halted,
    Noticed,
    Propose,
    PublishReport,
    RaiseAlarm,
    Rebuild,
)
from recycle.control.membership.machine import Machine
from recycle.control.membership.messages import Report
from recycle.control.membership.view import Member, View
from recycle.control.store.store import Entries, Store
from recycle.job import Job
from recycle.runtime.recover.gathering import Gathering
from recycle.runtime.recover.store_connection import StoreConnection

TOKEN = "token"


class Cost(NamedTuple):
    """What a view change was for one member.

    Attributes:
        decided: when it had the verdict, on the monotonic clock in seconds.
        requests: to the store.
        read: bytes of what it got.
        view: bytes of these that are verdicts.
    """

    decided: float
    requests: int
    read: int
    view: int


class CountingStore:
    """A Store that counts what is asked of another one, whatever that is.

    Args:
        store: which.

    Attributes:
        requests: how many there were.
        read: bytes of what was answered.
        view: bytes of these that were read under the key of the newest verdict.
    """

    def __init__(self, store: Store) -> None:
        self.clear()
        self._store = store

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._store, name)
        if not callable(asked):
            return asked

        def count(*given: Any) -> Any:
            found = asked(*given)
            self.requests += 1
            self.read += _size(found)
            self.view += _size(found) if given[0] == "view" else 0
            return found

        return count

    def clone(self) -> Self:
        """See Store."""
        return type(self)(self._store.clone())

    def clear(self) -> None:
        """Count from 0."""
        self.requests = self.read = self.view = 0


def _size(found: object) -> int:
    """Bytes of an answer of a store: of a value, of several, or of entries."""
    match found:
        case bytes():
            return len(found)
        case list():
            return sum(len(each or b"") for each in found)
        case Entries():
            return sum(len(entry) for _, entry in found.found)
    return 0


class BareMember:
    """A survivor without a training: what it has to do with a view change, and nothing else.

    Args:
        member: who it is.
        job: what would be trained.
        store: a connection of its own.
        durations: how long is waited for what.
    """

    def __init__(self, member: Member, job: Job, store: Store, durations: Durations) -> None:
        self._store = CountingStore(store)
        self._board = Board(self._store, TOKEN)
        self._gathering = Gathering(
            member, cast("StoreConnection", SimpleNamespace(board=self._board, durations=durations))
        )
        self._machine = Machine(member, job)
        self._rebuilt = False

    def begin(self) -> None:
        """Be in the view of the newest verdict, as if its groups stood."""
        verdict = self._board.verdicts.newest()
        assert verdict is not None, "there is none"
        self._machine.handle(Decided("begin", verdict))
        self._machine.handle(Built("built", verdict.epoch))
        self._store.clear()

    @property
    def view(self) -> View:
        """In which it is."""
        return self._machine.view

    def halt(self) -> None:
        """Hear the alarm, and say what this member holds."""
        epoch = self._machine.view.epoch
        alarm = None
        while alarm is None:
            _, alarm = self._board.failures.wait_call(epoch, 60.0)
        self._tell(Noticed("alarm", epoch, alarm.cause))
        self._tell(Halted("halted", Report(str(self._machine.me), epoch, 7, 6)))

    def change_view(self) -> Cost:
        """Take part until there is a verdict."""
        store = self._store
        while not self._is_done():
            for event in self._gathering.look(self._machine):
                self._tell(event)
                if self._is_done():
                    break
        return Cost(time.monotonic(), store.requests, store.read, store.view)

    def _is_done(self) -> bool:
        return self._rebuilt

    def _tell(self, event: Event) -> None:
        queue = [event]
        while queue:
            for action in self._machine.handle(queue.pop(0)):
                queue += self._perform(action)

    def _perform(self, action: Action) -> list[Event]:
        match action:
            case RaiseAlarm():
                pass  # it is the one that was heard
            case PublishReport(report):
                self._gathering.publish(report)
            case Propose(verdict):
                stored = self._gathering.propose(self._machine.view, verdict)
                return [Decided(f"view/{stored.epoch}", stored)]
            case Rebuild(verdict):
                assert not self._board.failures.unheard(verdict), "a death was told too late"
                self._rebuilt = True
            case _:
                raise AssertionError(f"nobody does {action}")
        return []
