"""What differs between two time lines of one job: who executes what, in which order, and at what pace."""

from bisect import bisect
from collections.abc import Mapping
from statistics import median
from typing import Literal

import msgspec

from recycle.job import Server
from recycle.plan.instruction import Instruction
from recycle.record.timeline import Span, Timeline
from recycle.wording import time_text

Change = Literal["new", "moved", "reordered"]
Key = tuple[int, Instruction]


class Comparison(msgspec.Struct, frozen=True):
    """How a second time line differs from a first.

    Attributes:
        pace: time units of the second per unit of the first, the median over the instructions of both; 1 if the units
            are the same.
        changes: what is different about the second's compute spans, by (server, place among the server's compute
            spans): ``new`` has no counterpart in the first, ``moved`` ran on another server there, ``reordered``
            follows another instruction there.
        missing: how many of the first's compute spans have no counterpart in the second.
    """

    pace: float
    changes: Mapping[tuple[Server, int], Change]
    missing: int

    def count(self, change: Change) -> int:
        """How many spans changed in this way."""
        return sum(each == change for each in self.changes.values())


def compare(first: Timeline, second: Timeline) -> Comparison:
    """Compare the compute spans of two time lines, over the iterations that both have.

    What a change of views interrupted and was made again is left out.
    """
    iterations = min(first.iterations, second.iterations)
    before = _by_key(first, iterations)
    changes: dict[tuple[Server, int], Change] = {}
    found: set[Key] = set()
    ratios: list[float] = []
    previous: dict[Server, Key | None] = {}
    place: dict[Server, int] = {}
    views, last = second.views, _last_views(second)
    for span in second.spans:
        if span.lane != "compute":
            continue
        index = place.get(span.server, 0)
        place[span.server] = index + 1
        if span.iteration >= iterations or not span.instruction.op.is_compute:
            continue
        if bisect(views, span.start) < last[span.iteration]:
            continue
        key = (span.iteration, span.instruction)
        other = before.get(key)
        if other is None:
            changes[span.server, index] = "new"
        else:
            found.add(key)
            if other[0].end > other[0].start:
                ratios.append((span.end - span.start) / (other[0].end - other[0].start))
            if other[0].server != span.server:
                changes[span.server, index] = "moved"
            elif other[1] != previous.get(span.server):
                changes[span.server, index] = "reordered"
        previous[span.server] = key
    pace = 1.0 if first.time_unit == second.time_unit or not ratios else median(ratios) or 1.0
    missing = sum(key not in found for key in before)
    return Comparison(pace, changes, missing)


def describe(comparison: Comparison, first: Timeline, second: Timeline) -> list[str]:
    """The comparison in plain lines."""
    lines = []
    if first.time_unit != second.time_unit:
        pace = time_text(comparison.pace, second.time_unit)
        lines.append(f"pace: one {first.time_unit} of the first is {pace} of the second")
    counts = {
        "on another server": comparison.count("moved"),
        "in another order": comparison.count("reordered"),
        "only in the second": comparison.count("new"),
        "only in the first": comparison.missing,
    }
    said = [f"{count} {words}" for words, count in counts.items() if count]
    lines.append(f"instructions: {', '.join(said) or 'the same, in the same order on the same servers'}")
    return lines


def _by_key(timeline: Timeline, iterations: int) -> dict[Key, tuple[Span, Key | None]]:
    """Every compute span with the one before it on its server."""
    found: dict[Key, tuple[Span, Key | None]] = {}
    previous: dict[Server, Key] = {}
    views, last = timeline.views, _last_views(timeline)
    for span in timeline.spans:
        if span.lane != "compute" or span.iteration >= iterations or not span.instruction.op.is_compute:
            continue
        if bisect(views, span.start) == last[span.iteration]:
            key = (span.iteration, span.instruction)
            found[key] = (span, previous.get(span.server))
            previous[span.server] = key
    return found


def _last_views(timeline: Timeline) -> dict[int, int]:
    """Per iteration, the last view in which some of it was made."""
    views = timeline.views
    last: dict[int, int] = {}
    for span in timeline.spans:
        last[span.iteration] = max(last.get(span.iteration, 0), bisect(views, span.start))
    return last
