"""Figures in words, the same wherever people read them: times, amounts of memory, throughput."""

from collections.abc import Mapping
from difflib import get_close_matches

MICROSECONDS = {
    "ps": 1e-6,
    "ns": 1e-3,
    "us": 1.0,
    "\u00b5s": 1.0,
    "ms": 1e3,
    "s": 1e6,
    "picosecond": 1e-6,
    "nanosecond": 1e-3,
    "microsecond": 1.0,
    "millisecond": 1e3,
    "second": 1e6,
    "min": 6e7,
    "minute": 6e7,
    "h": 3.6e9,
    "hour": 3.6e9,
    "d": 8.64e10,
    "day": 8.64e10,
}
"""The units of time, in microseconds; whatever else a job counts its times in stands for no length of time."""

BYTES = {
    "B": 1,
    "byte": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
}
"""The units of memory, in bytes; whatever else a job counts its memory in is no amount of bytes."""

OTHER_NAMES = {
    "nsec": "ns",
    "usec": "us",
    "\u03bcs": "us",
    "msec": "ms",
    "sec": "s",
    "hr": "h",
    "kilobyte": "kB",
    "megabyte": "MB",
    "gigabyte": "GB",
    "kibibyte": "KiB",
    "mebibyte": "MiB",
    "gibibyte": "GiB",
    "kb": "kB",
}
"""What known units are called as well."""

BASELINE = "fault-free 1F1B"
"""What plans are compared with; ``Job.baseline_name`` says whether tight memory slows it down."""

_TIMES = (("s", 1e6), ("ms", 1e3), ("us", 1.0), ("ns", 1e-3))
AMOUNTS = tuple((f"{prefix}iB", float(1024**power)) for power, prefix in reversed([*enumerate("KMGT", start=1)]))


ABSTRACT = 1e3
"""Microseconds that stand for a unit which is no unit of time, such as a slot."""


def known_unit(text: str, known: Mapping[str, float]) -> str:
    """The name of a unit that is known: of ``microseconds`` it is ``microsecond``; whatever is no unit stays as it is.

    Args:
        text: as somebody has written it.
        known: units by their names.

    Raises:
        ValueError: it looks like a known unit that is misspelt; the text is that unit.
    """
    names = {name.lower(): name for name in known} | {
        other: name for other, name in OTHER_NAMES.items() if name in known
    }
    if text in known:
        return text
    lower = text.strip().lower()
    for each in (lower, lower.removesuffix("s")):
        if each in names:
            return names[each]
    if close := get_close_matches(lower.removesuffix("s"), [name for name in names if len(name) > 3], n=1, cutoff=0.8):
        raise ValueError(names[close[0]])
    return text


def microseconds(unit: str) -> float:
    """How many microseconds one unit of time takes where something has to."""
    return MICROSECONDS.get(unit.lower(), ABSTRACT)


def time_text(value: float, unit: str) -> str:
    """A time with its unit: ``694 ms`` for 694000 us, ``1 slot``, ``30 slots``.

    Args:
        value: the time.
        unit: what it counts.
    """
    scale = MICROSECONDS.get(unit.lower())
    return plural(value, unit) if scale is None else _scaled(value * scale, _TIMES)


def seconds_text(seconds: float) -> str:
    """A length of time as people say it: ``0.42 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``.

    Args:
        seconds: the time.
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def memory_text(value: float, unit: str) -> str:
    """An amount of memory with its unit: ``1.5 GiB`` for 1536 MiB, ``6 activations``.

    Args:
        value: the amount.
        unit: what it counts.
    """
    scale = BYTES.get(unit)
    if scale is None:
        return plural(value, unit)
    return _scaled(value * scale, AMOUNTS) if value * scale >= AMOUNTS[-1][1] else plural(value * scale, "byte")


def throughput_text(throughput: float, baseline: str, reference: float | None = None, when: str = "before") -> str:
    """A plan's throughput and what it is compared with: ``planned throughput 80% of before (100% of fault-free 1F1B)``.

    Args:
        throughput: against that of the job's baseline.
        baseline: what that is called: ``Job.baseline_name``.
        reference: another throughput on the same scale; None to compare with the baseline alone.
        when: whose throughput that is.
    """
    if reference is None:
        return f"planned throughput {throughput:.0%} of {baseline}"
    return f"planned throughput {throughput / reference:.0%} of {when} ({throughput:.0%} of {baseline})"


def plural(value: float, unit: str) -> str:
    """A value and its unit."""
    return f"{number(value)} {printable(unit) if value == 1 else units(unit)}"


def units(unit: str) -> str:
    """A unit for several; symbols such as ms stay, and so do words that are of several."""
    symbol = unit in MICROSECONDS.keys() | BYTES.keys() and len(unit) <= 3
    return printable(unit) if symbol or len(unit) <= 2 or unit.endswith("s") else f"{printable(unit)}s"


def number(value: float) -> str:
    """A time or an amount without needless digits."""
    if value == int(value):
        return str(int(value))
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def printable(text: str) -> str:
    """Text from a file without what would steer a terminal or break a picture."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def printable_lines(text: str) -> str:
    """Text of which no character but the end of a line does more than to be seen."""
    return "\n".join(map(printable, text.split("\n")))


def _scaled(value: float, scales: tuple[tuple[str, float], ...]) -> str:
    """A value in the largest of some units of which it has at least one, in the smallest if it has less of each."""
    name, scale = next((each for each in scales if abs(value) >= each[1]), scales[0] if value == 0 else scales[-1])
    return f"{number(value / scale)} {name}"
