"""What runs recorded, for notebooks and scripts."""

from functools import cached_property
from typing import Any

from recycle.api.planned import PathLike, read_path
from recycle.errors import UserError
from recycle.record.history import History
from recycle.record.timeline import Timeline
from recycle.view.history import summarise
from recycle.view.html import page
from recycle.view.panel import make_panels
from recycle.view.subject import load_subject
from recycle.wording import microseconds

Rows = list[dict[str, Any]]


class RecordedRun:
    """A run, as its servers recorded it. Rows are as ``pandas.DataFrame`` takes them.

    Iterations are counted from 1. Times are in seconds, from the start of the first instruction on.

    Args:
        path: the folder of a run, or a recording.

    Raises:
        UserError: it cannot be read, or is no run.
    """

    def __init__(self, path: PathLike) -> None:
        place = read_path("path", path)
        if not (place.is_dir() or place.suffix == ".jsonl"):
            raise UserError(f"{place}: give the folder of a run, or a recording, whose name ends in .jsonl")
        self._subject = load_subject(place)
        assert self._subject.history is not None, "a run has one"
        assert self._subject.timeline is not None, "a run has one"
        self._history: History = self._subject.history
        self._timeline: Timeline = self._subject.timeline
        self._second = 1e6 / microseconds(self._timeline.time_unit)

    @property
    def summary(self) -> list[str]:
        """What its failures and returns were and cost, as the run has printed it; empty if there were none."""
        return summarise(self._history, self._history.servers)

    @property
    def iterations(self) -> Rows:
        """A row for each iteration that counts: ``iteration``, ``loss`` and ``seconds``, of its slowest server."""
        return [
            {"iteration": each.step + 1, "loss": each.loss, "seconds": each.seconds}
            for each in self._subject.totals
            if not each.held_out
        ]

    @property
    def evaluations(self) -> Rows:
        """A row for each look at held-out data: ``iterations`` made before it, and ``loss``."""
        return [{"iterations": each.step, "loss": each.loss} for each in self._subject.totals if each.held_out]

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
    def instructions(self) -> Rows:
        """A row for each instruction: ``server``, ``lane``, ``instruction``, ``iteration``, ``start`` and ``end``."""
        return [
            {
                "server": str(each.server),
                "lane": each.lane,
                "instruction": str(each.instruction),
                "iteration": each.iteration + 1,
                "start": each.start / self._second,
                "end": each.end / self._second,
            }
            for each in self._timeline.spans
        ]

    def html(self) -> str:
        """A page to explore in a browser."""
        return page(make_panels([self._subject], "stage"))

    def _since_start(self, time: float) -> float:
        return (time - self._timeline.origin) / self._second


def read_run(path: PathLike) -> RecordedRun:
    """What a run recorded, from its folder or a recording; also while it goes on.

    Raises:
        UserError: it cannot be read, or is no run.
    """
    return RecordedRun(path)
