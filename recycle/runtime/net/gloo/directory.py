"""Where gloo finds the addresses of a group's ranks, without a request to the store for each."""

from datetime import timedelta

from torch.distributed import Store

_KEY = "0/{}"
"""Under which gloo has a rank's address in the store of its group."""


class Directory(Store):
    """The store that gloo sees: it holds what this process has learned of a group, and asks no other process."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, bytes] = {}

    def address(self, rank: int) -> bytes:
        """Where a rank listens, as gloo writes it. That of this process is there from the start."""
        return self.get(_KEY.format(rank))

    def learn(self, rank: int, address: bytes) -> None:
        """Note where a rank listens."""
        self.set(_KEY.format(rank), address)

    def set(self, key: str, value: str | bytes) -> None:
        """See torch's."""
        self._known[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """See torch's. Gloo asks for what was learned before, so nothing is waited for."""
        return self._known[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """See get."""
        assert self._known.keys() >= set(keys), f"{keys} were not learned"
