"""Belief: which speeds of servers a run goes by, of those that it has measured.

On a busy machine clocks say one thing now and another one soon. So a speed has changed when two measurements in a row
say so. Who is left out is not measured, and may have become faster: it is given work again after a time that is long
beside what that costs if it has not, and that doubles.
"""

from collections.abc import Collection, Mapping

import msgspec

from recycle.holding import placed
from recycle.job import Job, Server
from recycle.placement import FULL_SPEED, PlacedServer
from recycle.record.speeds import LEAST, SLOW

TRIAL = 2 * LEAST
"""Iterations for which all wait for a server that is tried again in vain, about."""

SHARE = 100
"""How many times as long as a trial a server is left out at first."""


class Rest(msgspec.Struct, frozen=True):
    """A server's time without work.

    Attributes:
        since: when it was seen to work last, in seconds of the run.
        length: after which it is tried again, in seconds.
    """

    since: float
    length: float


class Belief:
    """What one member believes of all servers' speeds."""

    def __init__(self) -> None:
        self._last: dict[Server, float] = {}
        self._rests: dict[Server, Rest] = {}

    def changes(self, home: Job, known: Mapping[Server, int], shares: Mapping[Server, float]) -> dict[Server, int]:
        """The speeds that have changed, in percent.

        Args:
            home: what is trained, with what each server holds while all live.
            known: the speeds of all servers so far, in percent.
            shares: of its peers' speed, what each server has shown now.
        """
        before = self._last
        self._last = {**before, **shares}
        return {
            server: _nearest_speed(home, _clear(share))
            for server, share in shares.items()
            if server in before and (way := _way(share, known[server])) and _way(before[server], known[server]) == way
        }

    def tried_again(
        self, home: Job, idle: Collection[Server], known: Mapping[Server, int], now: float, iteration: float
    ) -> dict[Server, int]:
        """The servers that have been left out for long enough, with the speeds that they have at home, in percent.

        Args:
            home: what is trained, with what each server holds while all live.
            idle: the live servers that are left out.
            known: the speeds of all servers so far, in percent.
            now: seconds since the run began.
            iteration: seconds that one takes.
        """
        for server in self._rests:
            if server not in idle:
                self._rests[server] = msgspec.structs.replace(self._rests[server], since=now)
        tried: dict[Server, int] = {}
        for server in sorted(idle):
            first = Rest(now, SHARE * TRIAL * iteration * FULL_SPEED / known[server])
            rest = self._rests.setdefault(server, first)
            speed = placed(home, server).speed
            if known[server] < speed and now - rest.since >= rest.length:
                tried[server] = speed
                self._rests[server] = Rest(now, 2 * rest.length)
        return tried

    def forget(self, dead: Collection[Server]) -> None:
        """Nothing is known of who comes in the place of dead servers."""
        for server in dead:
            self._last.pop(server, None)
            self._rests.pop(server, None)


def _clear(share: float) -> float:
    """A share of the peers' speed, without what is not enough to say so."""
    return share if share < SLOW else 1.0


def _way(share: float, known: int) -> int:
    """Whether a server is slower than is known (-1), or faster (1); 0 for neither."""
    ratio = FULL_SPEED * _clear(share) / known
    return int(ratio > 1 / SLOW) - int(ratio < SLOW)


def _nearest_speed(job: Job, share: float) -> int:
    """The speed in percent whose costs, in the whole units of a job, are nearest to those at such a share of it."""
    costs = [cost for stage in job.stages for cost in (stage.forward, stage.input_gradient, stage.weight_gradient)]

    def distance(speed: int) -> tuple[float, float]:
        server = PlacedServer((), 0, speed)
        return abs(sum(map(server.time, costs)) - sum(costs) / share), abs(speed - FULL_SPEED * share)

    return min(range(1, FULL_SPEED + 1), key=distance)
