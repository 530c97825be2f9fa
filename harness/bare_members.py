"""Members without a training: real machine, board and gathering, over a store that counts what is asked of it."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import NamedTuple, Self, cast

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
    """A Store that counts what is asked of another one.

    Args:
        store: which.
    """

    forgets = True

    def __init__(self, store: Store) -> None:
        self.requests = self.read = self.view = 0
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """See Store."""
        self.requests += 1
        self._store.set(key, value)

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """See Store."""
        self.requests += 1
        self._store.set_many(values)

    def get(self, key: str) -> bytes | None:
        """See Store."""
        found = self._store.get(key)
        self._count(key, found)
        return found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        self.requests += 1
        found = self._store.get_many(keys)
        self.read += sum(len(each or b"") for each in found)
        return found

    def peek(self, keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        self.requests += 1
        found = self._store.peek(keys)
        self.read += sum(len(each or b"") for each in found)
        return found

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See Store."""
        found = self._store.compare_set(key, expected, desired)
        self._count(key, found)
        return found

    def keep_first(self, values: Mapping[str, bytes]) -> list[bytes]:
        """See Store."""
        self.requests += 1
        found = self._store.keep_first(values)
        self.read += sum(map(len, found))
        return found

    def exchange(self, values: Mapping[str, bytes], keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        self.requests += 1
        found = self._store.exchange(values, keys)
        self.read += sum(len(each or b"") for each in found)
        return found

    def wait(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        found = self._store.wait(key, timeout)
        self._count(key, found)
        return found

    def hear(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        found = self._store.hear(key, timeout)
        self._count(key, found)
        return found

    def add(self, key: str, amount: int) -> int:
        """See Store."""
        self.requests += 1
        return self._store.add(key, amount)

    def append(self, log: str, *entries: bytes) -> None:
        """See Store."""
        self.requests += 1
        self._store.append(log, *entries)

    def entries(self, log: str, after: int) -> Entries:
        """See Store."""
        self.requests += 1
        entries = self._store.entries(log, after)
        self.read += sum(len(entry) for _, entry in entries.found)
        return entries

    def wait_entry(self, log: str, after: int, timeout: float) -> bool:
        """See Store."""
        self.requests += 1
        return self._store.wait_entry(log, after, timeout)

    def delete(self, key: str) -> None:
        """See Store."""
        self.requests += 1
        self._store.delete(key)

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """See Store."""
        self.requests += 1
        self._store.delete_all(outlived)

    def clone(self) -> Self:
        """See Store."""
        return type(self)(self._store.clone())

    def clear(self) -> None:
        """Count from 0."""
        self.requests = self.read = self.view = 0

    def _count(self, key: str, found: bytes | None) -> None:
        self.requests += 1
        self.read += len(found or b"")
        if key == "view":
            self.view += len(found or b"")


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
