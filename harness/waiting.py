"""Runs that wait between two iterations for what has to happen meanwhile, however long a busy machine takes for it."""

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from recycle.control.membership.messages import complete_requests
from recycle.control.membership.view import Member
from recycle.job import Server
from recycle.runtime.execute import notices
from recycle.runtime.execute.notices import Notices
from recycle.runtime.recover.survivor import Survivor

MISSING = 90.0
"""Seconds for which a server is waited for that is missing."""

Waits = Callable[[Survivor], bool]
"""Says of a server, between two iterations, whether it still has to wait there."""


def wait_between(waits: Waits, patch: Callable[[object, str, object], None] = setattr) -> None:
    """Have servers wait between two iterations, and say in each one what is due.

    Args:
        waits: for what; an alarm ends the wait too.
        patch: puts something in the place of something else.
    """
    exchange = Survivor.exchange_notices

    @wraps(exchange)
    def wait_and_exchange(survivor: Survivor, **said: bool) -> Notices:
        while not survivor._alarm_watch.noticed and waits(survivor):
            time.sleep(0.01)
        return exchange(survivor, **said)

    patch(Survivor, "exchange_notices", wait_and_exchange)
    # Short iterations would say it only now and then, and many of them would be needed.
    patch(notices, "EVERY", 1)


class Held:
    """Waits before an iteration while a file called after it is in a folder, and for servers that are missing.

    Args:
        folder: which.
        step: the iteration that a server makes next.
    """

    def __init__(self, folder: Path, step: Callable[[Survivor], int] = lambda survivor: survivor.step) -> None:
        self._folder = folder
        self._step = step
        # It may have been given up.
        self._returns = AtMost(MISSING, ForReturn())

    def __call__(self, survivor: Survivor) -> bool:
        return (self._folder / str(self._step(survivor))).exists() or self._returns(survivor)


class AtMost:
    """Waits for so many seconds at most between the same two iterations, where further ones may be needed.

    Args:
        seconds: how many.
        waits: for what.
    """

    def __init__(self, seconds: float, waits: Waits) -> None:
        self._seconds = seconds
        self._waits = waits
        self._place = (-1, -1)
        self._since = 0.0

    def __call__(self, survivor: Survivor) -> bool:
        place = survivor._recovery.view.epoch, survivor.step
        if place != self._place:
            self._place, self._since = place, time.monotonic()
        return time.monotonic() < self._since + self._seconds and self._waits(survivor)


class ForReturn:
    """Waits for a server that is missing: until it asks to be let in, and once it is served, until it is ready.

    Args:
        server: which; any if it is None.
        first: no iteration before this one waits.
    """

    def __init__(self, server: Server | None = None, first: int = 0) -> None:
        self._server = server
        self._first = first
        self._answered: tuple[int, frozenset[tuple[str, int, int, str]]] = (-1, frozenset())

    def __call__(self, survivor: Survivor) -> bool:
        view = survivor._recovery.view
        whole = set(survivor._recovery.job.servers()) if self._server is None else {self._server}
        missing = whole - set(view.servers)
        if survivor.step < self._first or not missing:
            return False
        requests = [each for each in survivor._alarm_watch.requests if Member.parse(each.member).server in missing]
        asked = view.epoch, frozenset((each.member, each.rank, each.attempt, each.state) for each in requests)
        if not complete_requests(requests, survivor._rank.size) and (not requests or asked == self._answered):
            return True
        self._answered = asked
        return False
