"""What the members of a host ask of its relay, and what it answers."""

from typing import Annotated

import msgspec

from recycle.control.membership.doors import HostDoor
from recycle.control.membership.messages import read_early
from recycle.control.store.store import Entries, Store

Text = Annotated[str, msgspec.Meta(max_length=1000)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Result = None | bool | int | bytes | list[bytes | None] | Entries

HEAD = 4
"""Bytes before each message: its length."""

LARGEST = 1 << 26


class Set(msgspec.Struct, frozen=True, tag="set"):
    """See Store; for many keys."""

    values: dict[Text, bytes]


class Append(msgspec.Struct, frozen=True, tag="append"):
    """See Store."""

    log: Text
    entries: tuple[bytes, ...]


class Get(msgspec.Struct, frozen=True, tag="get"):
    """See Store; of many keys."""

    keys: tuple[Text, ...]


class ReadLog(msgspec.Struct, frozen=True, tag="entries"):
    """See Store."""

    log: Text
    after: int

    def ask(self, store: Store) -> Result:
        """Carry it out."""
        return store.entries(self.log, self.after)


class CompareSet(msgspec.Struct, frozen=True, tag="compare"):
    """See Store."""

    key: Text
    expected: bytes
    desired: bytes

    def ask(self, store: Store) -> Result:
        """Carry it out."""
        return store.compare_set(self.key, self.expected, self.desired)


class Add(msgspec.Struct, frozen=True, tag="add"):
    """See Store."""

    key: Text
    amount: int

    def ask(self, store: Store) -> Result:
        """Carry it out."""
        return store.add(self.key, self.amount)


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """See Store."""

    key: Text

    def ask(self, store: Store) -> Result:
        """Carry it out."""
        store.delete(self.key)
        return None


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Whether there is a store in which this run may still decide."""

    def ask(self, store: Store) -> Result:
        """Carry it out."""
        store.clone()
        return None


class WaitKey(msgspec.Struct, frozen=True, tag="wait"):
    """See Store.

    Attributes:
        key: what is waited for.
        timeout: in seconds.
        is_bell: whether it is heard as a bell.
    """

    key: Text
    timeout: Seconds
    is_bell: bool = False

    @property
    def subject(self) -> tuple[str, int]:
        """What is waited for; whoever waits for the same has it at the same time."""
        return self.key, -2 if self.is_bell else -1

    def wait(self, store: Store, seconds: float) -> tuple[bool, Result]:
        """Wait for a while; whether there is something, and what."""
        found = (store.hear if self.is_bell else store.wait)(self.key, seconds)
        return found is not None, found


class WaitEntry(msgspec.Struct, frozen=True, tag="wait_entry"):
    """See Store."""

    log: Text
    after: int
    timeout: Seconds

    @property
    def subject(self) -> tuple[str, int]:
        """See WaitKey."""
        return self.log, self.after

    def wait(self, store: Store, seconds: float) -> tuple[bool, Result]:
        """See WaitKey."""
        found = store.wait_entry(self.log, self.after, seconds)
        return found, found


Single = ReadLog | CompareSet | Add | Delete | Open
"""Requests that are carried out one by one, unless they are the same."""

Waiting = WaitKey | WaitEntry

Request = Set | Append | Get | Single | Waiting


class Answer(msgspec.Struct, frozen=True):
    """To one request.

    Attributes:
        result: what the store has answered.
        lost: why there is no store; empty if there is one.
        erased: whether there is one that has lost what the run has written.
        refusal: why the store has refused; empty if it has not.
    """

    result: Result = None
    lost: str = ""
    erased: bool = False
    refusal: str = ""


read_early(Request, Answer)


def door_of(token: str, prefix: str) -> HostDoor:
    """Where the relay of a host listens.

    Args:
        token: the run's.
        prefix: of the keys that it serves.
    """
    return HostDoor(token, f"relay/{prefix}")
