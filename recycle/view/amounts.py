"""Figures in the little room that pictures have, the same in all of them: times, and memory beside its limit."""

import math

from recycle.wording import AMOUNTS, BYTES, MICROSECONDS, number, time_text


def brief_time(time: float, unit: str) -> str:
    """A time where there is little room: ``638 ms``; without its unit where that is no length of time, such as a slot.

    Args:
        time: how long, or when.
        unit: what it counts.
    """
    return time_text(time, unit) if unit in MICROSECONDS else number(time)


def round_step(least: float) -> float:
    """The distance between two ticks: 1, 2 or 5 times a power of ten, and not less than that."""
    exponent = math.floor(math.log10(least))
    return next(step for factor in (1, 2, 5, 10) if (step := float(f"{factor}e{exponent}")) >= least)


def held_text(held: float | None, limit: float | None, unit: str) -> str:
    """What a server holds at most, and its limit: ``8.59/8.79 GiB``, or ``3/6`` where the unit is no amount of bytes.

    Args:
        held: the most; nothing is said if it is None.
        limit: left out if it is not known.
        unit: what its memory counts.
    """
    if held is None:
        return ""
    amounts = [held] if limit is None else [held, limit]
    if unit not in BYTES:
        return "/".join(map(number, amounts))
    name, size = memory_scale(max(amounts), unit)
    return "/".join(number(float(f"{each / size:.3g}")) for each in amounts) + f" {name}"


def memory_scale(most: float, unit: str) -> tuple[str, float]:
    """The unit in which amounts of memory are said, and how many of ``unit`` it has.

    Args:
        most: the largest of them.
        unit: what it counts, an amount of bytes.
    """
    name, size = next((each for each in AMOUNTS if most * BYTES[unit] >= each[1]), ("B", 1.0))
    return name, size / BYTES[unit]
