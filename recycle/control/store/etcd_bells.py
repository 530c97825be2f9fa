"""Keys of etcd that are waited for all the time, heard over one watch."""

import time
from collections.abc import Iterable, Mapping
from http.client import HTTPException

import msgspec

from recycle.control.store.etcd_gateway import KNOWN_HERE, Gateway, Json, Watch

LONGEST_HEARING = 12.0
"""Seconds until it is looked whether a watch of bells has missed something. It is long, because every host of a run
listens for them all the time. The kernel tells of a member whose host is lost; of one whose process hangs, nothing else
does."""

HURRY = 0.05
"""Seconds until a member is asked again that has ended a watch: where all of them answer, there is no hurry."""


class Bells:
    """A few keys that are set and never deleted while anybody waits for one of them.

    They are read once in a while, and what is set between is heard. So to wait for one after the other costs nothing.

    Args:
        gateway: how etcd is asked.
        span: the range of the keys.
    """

    def __init__(self, gateway: Gateway, span: Mapping[str, str]) -> None:
        self.span = span
        self._gateway = gateway
        self._watch: Watch | None = None
        self._read_at = float("-inf")
        # The values, as the gateway gives them.
        self._rung: dict[str, str] = {}

    def wait(self, name: str, timeout: float) -> str | None:
        """The value of a key, after it was set or a time in seconds is over; None if it was not.

        Args:
            name: of the key, as the gateway takes it.
            timeout: in seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            if self._watch is None or now - self._read_at >= LONGEST_HEARING:
                self._read()
            if name in self._rung or now >= deadline:
                return self._rung.get(name)
            try:
                if self._watch is not None:
                    self._note(self._watch.news(min(deadline - now, self._read_at + LONGEST_HEARING - now)))
            except msgspec.DecodeError:
                self.close()
            except OSError:
                self.close()
                time.sleep(min(deadline - now, HURRY))

    def close(self) -> None:
        """Hear of nothing more."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _read(self) -> None:
        """Read all of them, and hear from then on what is set at the member that has answered."""
        found = self._gateway.call_here("kv/range", {**self.span, **KNOWN_HERE})
        if found is None:
            found = self._gateway.call("kv/range", self.span)
        self._rung = {}
        self._note(found.get("kvs", ()))
        self._read_at = time.monotonic()
        if self._watch is not None and self._watch.member != self._gateway.member:
            self.close()
        if self._watch is None:
            begin = {"start_revision": str(int(found["header"]["revision"]) + 1), "filters": ["NODELETE"]}
            try:
                self._watch = self._gateway.open_watch({**self.span, **begin})
            except (OSError, HTTPException):
                time.sleep(HURRY)

    def _note(self, found: Iterable[Json]) -> None:
        for each in found:
            self._rung[each["key"]] = each.get("value", "")
