"""What differs between two time lines of one job: who executes what, in which order, and at what pace."""

from bisect import bisect
from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Literal, NamedTuple

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
    before, after = _by_key(first, iterations), _by_key(second, iterations)
    changes: dict[tuple[Server, int], Change] = {}
    ratios: list[float] = []
    for key, work in after.items():
        span, other = work.span, before.get(key)
        if other is None:
            changes[span.server, work.place] = "new"
            continue
        if other.span.end > other.span.start:
            ratios.append((span.end - span.start) / (other.span.end - other.span.start))
        if other.span.server != span.server:
            changes[span.server, work.place] = "moved"
        elif other.follows != work.follows:
            changes[span.server, work.place] = "reordered"
    pace = 1.0 if first.time_unit == second.time_unit or not ratios else median(ratios) or 1.0
    return Comparison(pace, changes, len(before.keys() - after.keys()))


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


class _Work(NamedTuple):
    """A compute span.

    Attributes:
        span: itself.
        place: among the compute spans of its server.
        follows: what its server computed before it.
    """

    span: Span
    place: int
    follows: Key | None


def _by_key(timeline: Timeline, iterations: int) -> dict[Key, _Work]:
    """Every span that computes and counts."""
    found: dict[Key, _Work] = {}
    previous: dict[Server, Key] = {}
    places: Counter[Server] = Counter()
    views, last = timeline.views, _last_views(timeline)
    for span in timeline.spans:
        if span.lane != "compute":
            continue
        place = places[span.server]
        places[span.server] += 1
        if span.iteration >= iterations or not span.instruction.op.is_compute:
            continue
        if bisect(views, span.start) == last[span.iteration]:
            key = (span.iteration, span.instruction)
            found[key] = _Work(span, place, previous.get(span.server))
            previous[span.server] = key
    return found


def _last_views(timeline: Timeline) -> dict[int, int]:
    """Per iteration, the last view in which some of it was made."""
    views = timeline.views
    last: dict[int, int] = {}
    for span in timeline.spans:
        last[span.iteration] = max(last.get(span.iteration, 0), bisect(views, span.start))
    return last
