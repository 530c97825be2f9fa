"""Keys of etcd that are waited for, heard over a watch."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException
from types import MappingProxyType

import msgspec

from recycle.control.store.etcd_gateway import KNOWN_HERE, Gateway, Json, Watch

HURRY = 0.05
"""Seconds until a member is asked again that has ended a watch: where all of them answer, there is no hurry."""


class EtcdWaits:
    """Waits over a watch, which is kept for the next wait for the same.

    Args:
        gateway: how etcd is asked.
        look: seconds until it is looked whether the watch has missed something: at a member that is lost, it hears
            nothing.
        of_bells: whether what is waited for is set and never deleted. What was heard before a wait counts then, and so
            does the word of one member: to wait for one after the other asks nothing.
    """

    def __init__(self, gateway: Gateway, look: float, *, of_bells: bool = False) -> None:
        self._gateway = gateway
        self._look = look
        self._of_bells = of_bells
        self._span: Mapping[str, str] = {}
        self._watch: Watch | None = None
        self._read_at = float("-inf")
        self._revision = 0
        # What was set last is at the end.
        self._found: list[Json] = []

    def wait(
        self,
        span: Mapping[str, str],
        timeout: float,
        is_wanted: Callable[[Json], bool] = lambda _: True,
        only: Mapping[str, str] = MappingProxyType({}),
    ) -> Json:
        """Wait until there is something in a range of keys, or a time is over; gives it as ``kv/range`` does.

        Args:
            span: the range, or a key.
            timeout: in seconds.
            is_wanted: whether a key is what is waited for.
            only: of which keys etcd has to tell.
        """
        deadline = time.monotonic() + timeout
        if span != self._span:
            self._stop()
            self._span = span
        begins = True
        while True:
            now = time.monotonic()
            at_edge = begins or now >= deadline
            if self._watch is None or now >= self._read_at + self._look or (at_edge and not self._of_bells):
                self._read(only)
            begins = False
            found = next(filter(is_wanted, reversed(self._found)), None)
            if found is not None or now >= deadline:
                return {"kvs": [found]} if found is not None else {}
            self._listen(min(self._read_at + self._look, deadline) - now)

    def _read(self, only: Mapping[str, str]) -> None:
        """Read what is there; what is set from then on is heard."""
        request = {**self._span, **only}
        found = self._gateway.call_here("kv/range", {**request, **KNOWN_HERE}) if self._of_bells else None
        if found is None:
            found = self._gateway.call("kv/range", request)
        self._found, self._revision = found.get("kvs", []), int(found["header"]["revision"])
        self._read_at = time.monotonic()
        if self._watch is not None and self._watch.member != self._gateway.member:
            self._stop()

    def _listen(self, timeout: float) -> None:
        """Wait until something may have been set since it was read, or a time in seconds is over."""
        try:
            if self._watch is None:
                begin = {"start_revision": str(self._revision + 1), "filters": ["NODELETE"]}
                self._watch = self._gateway.open_watch({**self._span, **begin})
            # A watch may have been opened before what it tells was read, or was deleted.
            self._found += [each for each in self._watch.news(timeout) if int(each["mod_revision"]) > self._revision]
        except msgspec.DecodeError:
            self._stop()
        except (OSError, HTTPException):
            self._stop()
            time.sleep(min(timeout, HURRY))

    def _stop(self) -> None:
        if self._watch is not None:
            with suppress(OSError):
                self._watch.close()
            self._watch = None
