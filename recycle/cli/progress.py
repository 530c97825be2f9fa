"""The progress of a training run, from the events of its servers."""

from collections import defaultdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

from recycle.plan.plan import Plan
from recycle.plan.recording import IterationLine
from recycle.runtime.events import Event

if TYPE_CHECKING:
    from rich.console import Console


class TrainingProgress:
    """One line that goes on: iteration, loss, tokens per second, view, retention. Evaluations stay above it.

    Args:
        console: where to.
        plan: what is run.
        tokens: in a micro-batch.
        iterations: where training ends.
    """

    def __init__(self, console: "Console", plan: Plan, tokens: int, iterations: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        job = plan.job
        self._console = console
        self._micro_batches = job.pipelines * job.micro_batches
        self._servers = len(plan.programs)
        self._tokens = tokens * self._micro_batches
        self._view = f"{self._servers}/{job.pipelines * job.depth} servers, retention {plan.retention:.0%}"
        self._iterations = iterations
        self._iterated: dict[int, list[IterationLine]] = defaultdict(list)
        self._evaluated: dict[int, list[float]] = defaultdict(list)
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

    def watch(self, event: Event) -> None:
        """Take in an event; when all servers have told of a step, show it."""
        if isinstance(event, IterationLine):
            self._iterated[event.step].append(event)
            if len(self._iterated[event.step]) == self._servers:
                self._show(event.step, self._iterated.pop(event.step))
        else:
            self._evaluated[event.step].extend(event.losses)
            if len(self._evaluated[event.step]) == self._micro_batches:
                losses = self._evaluated.pop(event.step)
                self._print(f"after {event.step} iterations: loss {sum(losses) / len(losses):.4f} on held-out text")

    def _show(self, step: int, events: list[IterationLine]) -> None:
        losses = [loss for event in events for loss in event.losses]
        speed = self._tokens / max(event.seconds for event in events)
        text = f"loss {sum(losses) / len(losses):.4f}, {speed:,.0f} tokens/s, {self._view}"
        self._progress.update(self._task, completed=step + 1, description=text)
        if not self._console.is_terminal:
            self._print(f"iteration {step + 1}/{self._iterations}: {text}")

    def _print(self, text: str) -> None:
        printer: Any = self._progress.console if self._console.is_terminal else self._console
        printer.print(text, markup=False)
