"""The progress of a training run."""

import time
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING

from recycle.plan.plan import Plan
from recycle.record.history import History
from recycle.record.recording import Line, ViewLine
from recycle.record.totals import StepTotal
from recycle.view.history import measured_text, summarise, tell
from recycle.wording import plural, seconds_text, throughput_text

RECENT = 20
"""Iterations from which the time left is estimated."""

if TYPE_CHECKING:
    from rich.console import Console


class TrainingProgress:
    """Iteration, loss, time, servers and throughput in a line that changes; evaluations and events stay above it.

    Args:
        console: where to.
        plan: what is run at first.
        tokens: in an iteration.
        iterations: where training ends.
        began: when the run began, on the monotonic clock in seconds; now if that is not known.

    Attributes:
        history: what has happened in the run so far.
    """

    def __init__(
        self, console: "Console", plan: Plan, tokens: int, iterations: int, began: float | None = None
    ) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.table import Column

        self.history = History()
        self._console = console
        self._tokens = tokens
        self._servers = len(plan.job.servers())
        self._baseline = plan.job.baseline_name
        self._view = self._size(len(plan.programs), plan.throughput)
        self._epoch: int | None = None
        self._iterations = iterations
        self._progress = Progress(
            TextColumn("iteration"),
            MofNCompleteColumn(),
            BarColumn(20),
            # Wrapped where the terminal is narrow, and not cut off.
            TextColumn("{task.description}", table_column=Column()),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=iterations)
        self._seconds: list[float] = []
        self._began = time.monotonic() if began is None else began

    def __enter__(self) -> "TrainingProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, total: StepTotal) -> None:
        """Show a step's figures."""
        if total.seconds is None:
            self._print(f"after {plural(total.step, 'iteration')}: loss {total.loss:.4f} on held-out text")
            return
        self._seconds.append(total.seconds)
        left = (self._iterations - total.step - 1) * median(self._seconds[-RECENT:])
        text = (
            f"loss {total.loss:.4f}, {self._tokens / total.seconds:,.0f} tokens/s, {seconds_text(total.seconds)} each, "
            f"{seconds_text(left)} left, {self._view}{measured_text(self._measured)}"
        )
        self._progress.update(self._task, completed=total.step + 1, description=text)
        if not self._console.is_terminal:
            self._print(f"iteration {total.step + 1}/{self._iterations}: {text}")

    def note(self, line: Line) -> None:
        """Take in what a server or the launcher reports, and show it if it is news."""
        news = self.history.add(line)
        if isinstance(line, ViewLine) and line is self.history.view:
            self._view = self._size(len(line.servers), line.throughput)
            self._epoch = line.epoch
            if line.epoch == 0:
                self.say(f"{len(line.servers)} servers are connected, and make the first iteration")
        if news is not None:
            self._print(tell(news, self._servers, self.history.time_unit))

    def say(self, text: str) -> None:
        """Say what is done before there is a first iteration."""
        if not self._seconds:
            self._progress.update(self._task, description=text)
            if not self._console.is_terminal:
                self._print(text)

    def summarise(self) -> None:
        """Say how long the run took, and what happened in it."""
        if self._seconds:
            made = plural(len(self._seconds), "iteration")
            each = seconds_text(median(self._seconds))
            self._print(f"{made} in {seconds_text(time.monotonic() - self._began)}, {each} each in the median")
        for line in summarise(self.history, self._servers) or (["no failures"] if self._seconds else []):
            self._print(line)

    def _size(self, live: int, throughput: float) -> str:
        changes = self.history.changes
        start = changes[0].start if changes else None
        text = throughput_text(throughput, self._baseline, start, "the start")
        return f"{live}/{self._servers} servers, {text}"

    @property
    def _measured(self) -> float | None:
        """The throughput of the present view, if it is not the first one and some iterations were made in it."""
        return self.history.measured(self._epoch) if self.history.changes and self._epoch is not None else None

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False)
