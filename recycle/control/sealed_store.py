"""Typed and sealed access to the store over one connection."""

from typing import TypeVar

from recycle.control.messages import seal, unseal
from recycle.control.store import Store

_T = TypeVar("_T")


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

    def read(self, key: str, form: type[_T]) -> _T | None:
        """What is stored, or None where nothing is."""
        sealed = self.plain.get(key)
        return None if sealed is None else self.unseal(key, sealed, form)

    def write(self, key: str, content: object) -> None:
        """Store something, whatever is there."""
        self.plain.set(key, self.seal(key, content))

    def write_once(self, key: str, content: _T) -> _T:
        """Store something where nothing is; gives what was stored first."""
        stored = self.plain.compare_set(key, b"", self.seal(key, content))
        return self.unseal(key, stored, type(content))

    def seal(self, key: str, content: object) -> bytes:
        """See ``messages.seal``."""
        return seal(self._token, key, content)

    def unseal(self, key: str, sealed: bytes, form: type[_T]) -> _T:
        """See ``messages.unseal``."""
        return unseal(self._token, key, sealed, form)
