"""Waiting for keys of etcd, one after the other."""

import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException

import msgspec

from recycle.control.store.etcd_bells import HURRY
from recycle.control.store.etcd_gateway import Gateway, Json, Watch

LONGEST_WATCH = 1.0
"""Seconds until it is looked whether a watch has missed something: at a member that is lost, it hears nothing."""


class EtcdWaits:
    """Waits over a watch, which is kept for the next wait for the same.

    Args:
        gateway: how etcd is asked.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._watch: tuple[Mapping[str, str], Watch] | None = None

    def wait(self, span: Mapping[str, str], wanted: Mapping[str, str], timeout: float) -> Json:
        """Wait until there is something in a range of keys, or a time in seconds is over; gives what was found.

        Args:
            span: the range, or a key.
            wanted: what else counts.
            timeout: in seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            found = self._gateway.call("kv/range", {**span, **wanted})
            left = deadline - time.monotonic()
            if "kvs" in found or left <= 0:
                return found
            revision = int(found["header"]["revision"])
            oldest = int(wanted.get("min_create_revision", 0))
            for each in self._news(span, revision, min(left, LONGEST_WATCH)):
                # A watch may have been opened before this wait, and have heard of what was found then.
                if int(each["mod_revision"]) > revision and int(each["create_revision"]) >= oldest:
                    return {"kvs": [each]}

    def _news(self, span: Mapping[str, str], revision: int, timeout: float) -> list[Json]:
        """Wait until something may have been set in a range after a revision, or a time in seconds is over.

        Returns:
            What was, as far as it is known.
        """
        try:
            return self._follow(span, revision).news(timeout)
        except msgspec.DecodeError:
            self._stop()
        except (OSError, HTTPException):
            self._stop()
            time.sleep(min(timeout, HURRY))
        return []

    def _follow(self, span: Mapping[str, str], revision: int) -> Watch:
        """A watch of a range; the same as the last time, as long as it is where requests are answered."""
        if self._watch is not None:
            watched, watch = self._watch
            if watched == span and watch.member == self._gateway.member:
                return watch
            self._stop()
        request = {**span, "start_revision": str(revision + 1), "filters": ["NODELETE"]}
        watch = self._gateway.open_watch(request)
        self._watch = span, watch
        return watch

    def _stop(self) -> None:
        if self._watch is not None:
            with suppress(OSError):
                self._watch[1].close()
            self._watch = None
