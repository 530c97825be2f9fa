"""Random failures and repairs, from the mean time between failures."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from random import Random
from typing import TypeVar

from recycle.faults.errors import FaultError
from recycle.faults.menu import Fault, Faults, Kind
from recycle.faults.outages import NodeOutage, Outages
from recycle.holding import units_of
from recycle.job import Job, Server
from recycle.wording import seconds_text

T = TypeVar("T")

MOST = 100_000


def random_faults(
    job: Job,
    mtbf_seconds: float,
    seed: int,
    duration: float,
    mean_time_to_repair: float | None = None,
    dead: Collection[Server] = (),
) -> Faults:
    """Kills of random servers at random times, and joins that repair them; the same for the same seed.

    The time between two kills is exponential, whichever servers live. The last live server of a stage is never killed.

    Args:
        job: whose servers fail.
        mtbf_seconds: mean time between two kills in the whole cluster.
        seed: of times and servers.
        duration: seconds from the first iteration in which faults happen.
        mean_time_to_repair: mean seconds from a kill to its server's replacement, exponential too; None for never.
        dead: the servers that take no part from the start; they are not repaired.

    Raises:
        FaultError: a time has no sense.
    """
    _require_positive(mtbf_seconds, "mtbf")
    if mean_time_to_repair is not None:
        _require_positive(mean_time_to_repair, "mean time to repair")
    units = {server: units_of(job, server) for server in job.servers()}
    held = Counter(unit for server in units if server not in dead for unit in units[server])

    def candidates(down: Collection[Server]) -> Sequence[Server]:
        lost = Counter(unit for server in down for unit in units[server])
        return [
            server
            for server in units
            if server not in down and server not in dead and all(held[unit] - lost[unit] > 1 for unit in units[server])
        ]

    events: list[tuple[float, bool, Server]] = []
    for server, at, back in _failures(candidates, mtbf_seconds, mean_time_to_repair, duration, seed):
        events.append((at, True, server))
        if back < duration:
            events.append((back, False, server))
    kinds = {True: Kind.KILL, False: Kind.JOIN}
    faults = (Fault(kinds[dies], (server,), at=_round(time)) for time, dies, server in sorted(events))
    return Faults(tuple(faults), at_random=True)


def random_outages(places: int, between_failures: float, repair: float, seconds: float, seed: int) -> Outages:
    """The same random failures and repairs as outages of places; any of them may fail, the last of a stage too.

    Args:
        places: how many there are.
        between_failures: mean seconds between two failures of all of them together.
        repair: mean seconds from a failure to the return.
        seconds: how long the trace lasts.
        seed: of times and places.

    Raises:
        FaultError: a time has no sense.
    """
    _require_positive(repair, "mean time to repair")

    def candidates(down: Collection[int]) -> Sequence[int]:
        return [place for place in range(places) if place not in down]

    entries = (
        NodeOutage(place, _round(at), min(_round(back), seconds))
        for place, at, back in _failures(candidates, between_failures, repair, seconds, seed)
    )
    lasting = tuple(each for each in entries if each.start < each.end)
    return Outages(f"random failures of seed {seed}", places, seconds, lasting)


def _failures(
    candidates: Callable[[Collection[T]], Sequence[T]],
    between: float,
    repair: float | None,
    seconds: float,
    seed: int,
) -> Iterator[tuple[T, float, float]]:
    """Who fails when, and is back when: in studies as in runs."""
    _require_positive(between, "mtbf")
    _require_positive(seconds, "duration")
    if seconds / between > MOST:
        raise FaultError(
            f"mtbf is {between:g} s, over {seconds_text(seconds)}: at most {MOST} failures; make it longer"
        )
    random = Random(seed)
    down: dict[T, float] = {}
    time = random.expovariate(1 / between)
    while time < seconds:
        down = {each: back for each, back in down.items() if back >= time}
        if found := candidates(down):
            failed = random.choice(found)
            down[failed] = time + (math.inf if repair is None else random.expovariate(1 / repair))
            yield failed, time, down[failed]
        time += random.expovariate(1 / between)


def _round(time: float) -> float:
    """To whole milliseconds, so that the faults of a seed are the same text on every machine."""
    return round(time, 3)


def _require_positive(value: float, field: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise FaultError(f"{field} is {value:g} s: give a number of seconds above 0")
