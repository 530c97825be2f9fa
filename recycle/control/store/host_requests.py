"""What the members of a host ask of a store through a process of that host, and what it answers."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol, Self

import msgspec

from recycle.control.membership.messages import read_early
from recycle.control.store.store import Entries

Text = Annotated[str, msgspec.Meta(max_length=1000)]
Values = list[bytes | None]
Result = None | bool | int | bytes | Values | Entries
Method = Literal[
    "set_many", "append", "get_many", "entries", "compare_set", "delete", "clone", "wait", "hear", "wait_entry", "keys"
]

HEAD = 4
"""Bytes before each message: its length."""

LARGEST = 1 << 26


class Askable(Protocol):
    """What requests are carried out on: a store, or what one holds."""

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """See Store."""

    def get_many(self, keys: Sequence[str]) -> Values:
        """See Store."""

    def clone(self) -> object:
        """See Store."""


class Request(msgspec.Struct, frozen=True):
    """A call of one of Store's methods.

    Attributes:
        method: which; ``clone`` asks whether there is a store in which this run may still decide, and ``keys`` for all
            that there are.
        keys: or the log that it is called for.
        values: to be stored.
        number: after which entries are read.
        timeout: in seconds, of a method that waits; None for any other.
    """

    method: Method
    keys: tuple[Text, ...] = ()
    values: tuple[bytes, ...] = ()
    number: int | None = None
    timeout: Annotated[float, msgspec.Meta(ge=0)] | None = None

    @property
    def subject(self) -> Self:
        """What is waited for; whoever waits for the same has it at the same time."""
        return msgspec.structs.replace(self, timeout=None)

    def ask(self, store: Askable, seconds: float | None) -> Result:
        """Carry it out.

        Args:
            store: where.
            seconds: for which it waits; None if it is a method that does not.
        """
        if self.method == "get_many":
            return store.get_many(self.keys)
        if self.method == "set_many":
            store.set_many(dict(zip(self.keys, self.values, strict=True)))
        elif self.method == "clone":
            store.clone()
        else:
            numbers = [each for each in (self.number, seconds) if each is not None]
            found: Result = getattr(store, self.method)(*self.keys, *self.values, *numbers)
            return found
        return None


class Answer(msgspec.Struct, frozen=True):
    """To one request.

    Attributes:
        result: what the store has answered.
        lost: why there is no store; empty if there is one.
        refusal: why the store has refused; empty if it has not.
    """

    result: Result = None
    lost: str = ""
    refusal: str = ""


def framed(message: Request | Answer) -> bytes:
    """What is sent for a message: its length, and itself."""
    encoded = msgspec.msgpack.encode(message)
    return len(encoded).to_bytes(HEAD) + encoded


read_early(Request, Answer)
