"""Random failures and repairs, from the mean time between failures."""

import math
from collections import Counter
from collections.abc import Collection
from random import Random

from recycle.faults.errors import FaultError
from recycle.faults.menu import Fault, Faults, Kind
from recycle.holding import units_of
from recycle.job import Job, Server

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

    The time between two kills is exponential, whoever is alive. The last live server of a stage is never killed.

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
    _require_positive(duration, "duration")
    if mean_time_to_repair is not None:
        _require_positive(mean_time_to_repair, "mean time to repair")
    if duration / mtbf_seconds > MOST:
        raise FaultError(f"mtbf is {mtbf_seconds:g} s in a run of {duration:g} s: at most {MOST} kills; make it longer")
    random = Random(seed)
    repairs = dict.fromkeys(dead, math.inf)
    held = Counter(unit for server in job.servers() if server not in repairs for unit in units_of(job, server))
    faults: list[Fault] = []
    time = 0.0
    while time < duration:
        time += random.expovariate(1 / mtbf_seconds)
        for repaired, server in sorted((at, server) for server, at in repairs.items() if at < min(time, duration)):
            del repairs[server]
            held.update(units_of(job, server))
            faults.append(Fault(Kind.JOIN, (server,), at=_round(repaired)))
        candidates = [
            server
            for server in job.servers()
            if server not in repairs and all(held[unit] > 1 for unit in units_of(job, server))
        ]
        if time < duration and candidates:
            victim = random.choice(candidates)
            held.subtract(units_of(job, victim))
            faults.append(Fault(Kind.KILL, (victim,), at=_round(time)))
            wait = math.inf if mean_time_to_repair is None else random.expovariate(1 / mean_time_to_repair)
            repairs[victim] = time + wait
    return Faults(tuple(faults), at_random=True)


def _round(time: float) -> float:
    """To whole milliseconds, so that the faults of a seed are the same text on every machine."""
    return round(time, 3)


def _require_positive(value: float, field: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise FaultError(f"{field} is {value:g} s: give a number of seconds above 0")
