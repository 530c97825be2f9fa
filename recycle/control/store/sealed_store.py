"""Typed and sealed access to the store over one connection.

Whoever reaches the store can write to it. What lacks the run's seal counts as not there, and ends nobody.
"""

import secrets
import time
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from recycle.control.membership.errors import ControlError
from recycle.control.membership.messages import read_early, seal, unseal
from recycle.control.store.store import Store
from recycle.saying import say

STRANGE = 0.1
"""Seconds between two looks where a stranger has written over something."""

_K = TypeVar("_K")
_T = TypeVar("_T")


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number, and by whom it was taken."""

    number: int
    taker: str


read_early(_Given)


class SealedStore:
    """Reads and writes messages that are sealed with the run's token.

    Args:
        store: a connection to the store.
        token: the run's secret.

    Attributes:
        plain: the same connection, for what is not sealed.
    """

    def __init__(self, store: Store, token: str) -> None:
        self.plain = store
        self._token = token
        self._has_warned = False

    def read(self, key: str, form: type[_T], timeout: float = 0.0) -> _T | None:
        """What is stored, or None where nothing is that has the run's seal.

        Args:
            key: where.
            form: what it must be.
            timeout: seconds to wait for it. The connection is busy for that long.
        """
        stored = self.plain.wait(key, timeout) if timeout else self.plain.get(key)
        content = self.find(key, stored, form)
        if stored and content is None:
            time.sleep(min(timeout, STRANGE))  # what a stranger has written ends every wait at once
        return content

    def read_all(self, wanted: Mapping[_K, str], form: type[_T]) -> dict[_K, _T]:
        """The same for some keys, in one request where the store can, without those where nothing is.

        Args:
            wanted: the keys, by what is asked for.
            form: what each must be.
        """
        stored = self.plain.get_many(list(wanted.values())) if wanted else []
        pairs = zip(wanted.items(), stored, strict=True)
        read = {each: self.find(key, found, form) for (each, key), found in pairs}
        return {each: content for each, content in read.items() if content is not None}

    def write(self, key: str, content: object) -> None:
        """Store something, whatever is there."""
        self.write_all({key: content})

    def write_all(self, contents: Mapping[str, object]) -> None:
        """The same for some keys, in few requests."""
        self.plain.set_many({key: self.seal(key, each) for key, each in contents.items()})

    def write_once(self, key: str, content: _T) -> _T:
        """Store something where nothing is; gives what was stored first."""
        expected, sealed = b"", self.seal(key, content)
        while True:
            stored = self.plain.compare_set(key, expected, sealed)
            found = content if stored == sealed else self.find(key, stored, type(content))
            if found is not None:
                return found
            expected = stored

    def count(self, key: str, least: int) -> int:
        """A number that is given to nobody else, one greater than the last one or than ``least``.

        Args:
            key: where the last one is.
            least: that is known to have been given.
        """
        stored = self.plain.get(key)
        while True:
            last = self.find(key, stored, _Given)
            given = _Given(max(least, 0 if last is None else last.number) + 1, secrets.token_hex(8))
            sealed = self.seal(key, given)
            found = self.plain.compare_set(key, stored or b"", sealed)
            if found == sealed:
                return given.number
            stored = found

    def counted(self, key: str) -> int:
        """The last number that ``count`` has given; 0 before the first one."""
        last = self.read(key, _Given)
        return 0 if last is None else last.number

    def write_all_once(self, contents: Mapping[str, _T]) -> list[_T]:
        """The same for some keys, in one request where the store can."""
        stored = self.plain.keep_first({key: self.seal(key, each) for key, each in contents.items()})
        pairs = zip(contents.items(), stored, strict=True)
        # What a stranger has stored is written over.
        return [
            self.find(key, sealed, type(content)) or self.write_once(key, content) for (key, content), sealed in pairs
        ]

    def seal(self, key: str, content: object) -> bytes:
        """See ``messages.seal``."""
        return seal(self._token, key, content, packs=True)

    def find(self, key: str, sealed: bytes | None, form: type[_T]) -> _T | None:
        """Decode what was found under a key; None, with a warning, for what lacks the run's seal.

        Args:
            key: which.
            sealed: what was found there; None or empty if nothing was.
            form: what it must be.
        """
        try:
            return self.unseal(key, sealed, form) if sealed else None
        except ControlError as error:
            self.warn(f"a stranger writes to the store, and is ignored: {error}")
            return None

    def warn(self, text: str) -> None:
        """Tell the user once that a stranger is at the store."""
        if not self._has_warned:
            self._has_warned = True
            say(text)

    def unseal(self, key: str, sealed: bytes, form: type[_T]) -> _T:
        """See ``messages.unseal``."""
        return unseal(self._token, key, sealed, form)
