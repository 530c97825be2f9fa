"""The progress of a training run."""

from types import TracebackType
from typing import TYPE_CHECKING, Any

from recycle.plan.plan import Plan
from recycle.runtime.totals import StepTotal

if TYPE_CHECKING:
    from rich.console import Console


class TrainingProgress:
    """One line that goes on: iteration, loss, tokens per second, view, retention. Evaluations stay above it.

    Args:
        console: where to.
        plan: what is run.
        tokens: in an iteration.
        iterations: where training ends.
    """

    def __init__(self, console: "Console", plan: Plan, tokens: int, iterations: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        job = plan.job
        self._console = console
        self._tokens = tokens
        self._view = f"{len(plan.programs)}/{job.pipelines * job.depth} servers, retention {plan.retention:.0%}"
        self._iterations = iterations
        self._progress = Progress(
            TextColumn("iteration"),
            MofNCompleteColumn(),
            BarColumn(20),
            TextColumn("{task.description}"),
            console=console,
        )
        self._task = self._progress.add_task("", total=iterations)

    def __enter__(self) -> "TrainingProgress":
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def show(self, total: StepTotal) -> None:
        """Show a step's figures."""
        if total.seconds is None:
            self._print(f"after {total.step} iterations: loss {total.loss:.4f} on held-out text")
            return
        text = f"loss {total.loss:.4f}, {self._tokens / total.seconds:,.0f} tokens/s, {self._view}"
        self._progress.update(self._task, completed=total.step + 1, description=text)
        if not self._console.is_terminal:
            self._print(f"iteration {total.step + 1}/{self._iterations}: {text}")

    def _print(self, text: str) -> None:
        printer: Any = self._progress.console if self._console.is_terminal else self._console
        printer.print(text, markup=False)
