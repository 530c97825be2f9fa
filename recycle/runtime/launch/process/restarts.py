"""How often a server whose worker has crashed is started again on its host."""

from collections import defaultdict

from recycle.control.host.agent import DONE, FENCED, LEFT, STOPPED
from recycle.job import Server

HOUR = 3600.0

RESTARTS = 3
"""Of a server that has crashed, within an hour, if nobody says."""


MOST_IN_PLACE = 3
"""Of the last server that holds something, while the run gets no further."""


def has_crashed(status: int) -> bool:
    """Whether a worker that ended so was meant to go on."""
    return status not in (DONE, FENCED, LEFT, STOPPED)


class Restarts:
    """Counts them.

    Args:
        limit: for one server within an hour; one that fails more often is left alone, because its host may be broken.
        remedy: how to bring it back then.
    """

    def __init__(self, limit: int, remedy: str = "bring it back with recycle join") -> None:
        self._limit = limit
        self._remedy = remedy
        self._times: dict[Server, list[float]] = defaultdict(list)
        self._insisted: dict[Server, tuple[int, int]] = {}

    def allow(self, server: Server, now: float) -> bool:
        """Whether a server may be started again; it counts as started then.

        Args:
            server: which.
            now: the time in seconds, on a clock that never goes back.
        """
        times = self._times[server] = [each for each in self._times[server] if now - each < HOUR]
        if len(times) >= self._limit:
            return False
        times.append(now)
        return True

    def insist(self, server: Server, step: int) -> bool:
        """Whether a server without which the run ends is started again beyond that: as long as the run gets on.

        Args:
            server: which.
            step: how far the run is.
        """
        last, times = self._insisted.get(server, (step, 0))
        times = times + 1 if step == last else 1
        self._insisted[server] = step, times
        return times <= MOST_IN_PLACE

    def refusal(self, server: Server) -> str:
        """Why a server is not started again; empty where that was never to be."""
        if not self._limit:
            return ""
        return (
            f"{server} has crashed more than {self._limit} times within an hour, and is not started again: see what is "
            f"wrong with its host, and {self._remedy}"
        )
