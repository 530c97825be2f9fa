"""What runs recorded, for notebooks and scripts."""

import math
from functools import cached_property
from typing import Any

from recycle.api.planned import PathLike, read_count, read_path
from recycle.errors import UserError
from recycle.record.history import history_of
from recycle.record.reading import load_lines
from recycle.record.recording import SampleLine, SpanLine
from recycle.record.totals import totals_of
from recycle.view.history import summarise
from recycle.view.html import page
from recycle.view.panel import make_panels
from recycle.view.subject import Subject, load_subject
from recycle.wording import microseconds

Rows = list[dict[str, Any]]


class RecordedRun:
    """A run, as its servers recorded it. Rows are as ``pandas.DataFrame`` takes them.

    Iterations are counted from 1. Times are in seconds, from the start of the first instruction on. Instructions are
    read when they are first asked for; nothing else takes memory for them.

    Args:
        path: the folder of a run, or a recording.
        iterations: of how many of the last iterations ``instructions`` and ``html`` are; None for all.

    Raises:
        UserError: it cannot be read, or is no run.
    """

    def __init__(self, path: PathLike, iterations: int | None = None) -> None:
        self._last = None if iterations is None else read_count("iterations", iterations, 1)
        place = read_path("path", path)
        if not (place.is_dir() or place.suffix == ".jsonl"):
            raise UserError(f"{place}: give the folder of a run, or a recording, whose name ends in .jsonl")
        facts, origin = [], math.inf
        # Each recording in a folder is of one server, in the order of its work.
        for line in load_lines(place, facts=place.is_dir()):
            if isinstance(line, SpanLine):
                origin = min(origin, line.start)
            elif not isinstance(line, SampleLine):
                facts.append(line)
        self._place = place
        self._history = history_of(facts)
        self._totals = totals_of(facts)
        self._origin = 0.0 if origin == math.inf else origin
        self._second = 1e6 / microseconds(self._history.time_unit)

    @property
    def summary(self) -> list[str]:
        """What its failures and returns were and cost, as the run has printed it; empty if there were none."""
        return summarise(self._history, self._history.servers)

    @property
    def iterations(self) -> Rows:
        """A row for each iteration that counts: ``iteration``, ``loss`` and ``seconds``, of its slowest server."""
        return [
            {"iteration": each.step + 1, "loss": each.loss, "seconds": each.seconds}
            for each in self._totals
            if not each.held_out
        ]

    @property
    def evaluations(self) -> Rows:
        """A row for each look at held-out data: ``iterations`` made before it, and ``loss``."""
        return [{"iterations": each.step, "loss": each.loss} for each in self._totals if each.held_out]

    @property
    def failures(self) -> Rows:
        """A row for each death: ``time``, ``server``, ``reason``, how it was ``noticed``, and the ``view`` after it."""
        return [
            {
                "time": self._since_start(each.time),
                "server": each.server,
                "reason": each.reason,
                "noticed": each.noticed,
                "view": each.epoch,
            }
            for each in self._history.deaths
        ]

    @property
    def views(self) -> Rows:
        """A row for each membership view but the first, which a failure, a return or moved layers led to.

        Its ``time``, first ``iteration``, number of ``servers`` and ``cause``; its throughput against the first view,
        ``planned`` and ``measured``; what it cost in seconds: work ``lost``, ``recovery``, and ``slower`` iterations
        since. What is not known is None.
        """
        rows = []
        for change in self._history.changes:
            view, cost = change.view, self._history.cost(change.view.epoch)
            rows.append(
                {
                    "view": view.epoch,
                    "time": self._since_start(view.time),
                    "iteration": view.step + 1,
                    "servers": len(view.servers),
                    "cause": view.cause,
                    "planned": view.throughput / change.start,
                    "measured": self._history.measured(view.epoch),
                    "lost": cost.lost / self._second,
                    "recovery": cost.recovery / self._second,
                    "slower": None if cost.slower is None else cost.slower / self._second,
                }
            )
        return rows

    @cached_property
    def _subject(self) -> Subject:
        return load_subject(self._place, self._last)

    @cached_property
    def instructions(self) -> Rows:
        """A row for each instruction: ``server``, ``lane``, ``instruction``, ``iteration``, ``start`` and ``end``."""
        line = self._subject.timeline
        return [
            {
                "server": str(each.server),
                "lane": each.lane,
                "instruction": str(each.instruction),
                "iteration": line.first + each.iteration + 1,
                "start": self._since_start(line.origin + each.start),
                "end": self._since_start(line.origin + each.end),
            }
            for each in line.spans
        ]

    def html(self) -> str:
        """A page to explore in a browser."""
        return page(make_panels([self._subject], "stage"))

    def _since_start(self, time: float) -> float:
        return (time - self._origin) / self._second


def read_run(path: PathLike, iterations: int | None = None) -> RecordedRun:
    """What a run recorded, from its folder or a recording; also while it goes on.

    Args:
        path: the folder of a run, or a recording.
        iterations: of how many of the last iterations instructions are read, if they are asked for; None for all.

    Raises:
        UserError: it cannot be read, or is no run.
    """
    return RecordedRun(path, iterations)
