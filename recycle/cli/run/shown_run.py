"""A training run as the console shows it, from its start to its summary."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING

from recycle.cli.console import make_console
from recycle.cli.losses import marks_of
from recycle.cli.options import describe_dead, describe_job
from recycle.faults.menu import Faults
from recycle.files import write_whole
from recycle.plan.plan import Plan
from recycle.record.best_effort import BestEffort
from recycle.record.history import History
from recycle.record.recording import InstantLine, IterationLine, Line, ViewLine
from recycle.record.totals import StepTotal
from recycle.view.history import measured_text, summarise, tell
from recycle.view.losses import draw_losses
from recycle.wording import plural, seconds_text, throughput_text

if TYPE_CHECKING:
    from rich.console import Console

    from recycle.megatron.gpt.run_settings import Run
    from recycle.runtime.launch.meet.rendezvous import Rendezvous

RECENT = 20
"""Iterations from which the time left is estimated."""


def train_and_show(run: "Run", faults: Faults, meeting: "Rendezvous | None") -> None:
    """Train, and show how it goes.

    Raises:
        RunFailed: the run did not come to its end.
    """
    from recycle.cli.run.planning import planning_of
    from recycle.megatron.gpt.training import train
    from recycle.runtime.net.gloo.releases import untried_release

    plan, output = run.plan, run.folder
    planning = planning_of(run)
    console = make_console(error=True)
    console.print(describe_job(plan.job))
    console.print(f"dead       {describe_dead(plan.dead)}")
    first = min(plan.programs)
    console.print(f"processes  pgrep -f 'recycle: {first}( |$)' finds a server, recycle kill {output} {first} kills it")
    throughput = throughput_text(plan.throughput, plan.job.baseline_name)
    console.print(f"plan       period {plan.job.time_text(plan.period)}, {throughput}")
    if untried := untried_release():
        console.print(f"torch      {untried}")
    with shown(run, console) as watch:
        train(run, watch, planning.make, faults, meeting, planning.mover)
    console.print(f"written to {output}: plan.json, events, checkpoints, tensorboard, loss.svg")
    page = output / "run.html"
    console.print(f"look at    recycle show {output} --html {page}: what each server did, and each recovery")


@contextmanager
def shown(run: "Run", console: "Console") -> Iterator[Callable[[Line], None]]:
    """Show how a run goes, and at its end what happened; in the terminal, for TensorBoard, and as a picture.

    Args:
        run: which.
        console: where to.

    Yields:
        What takes all that is recorded.
    """
    from recycle.record.totals import StepTotal, Totals
    from recycle.runtime.launch.supervise.tensorboard import TensorBoard
    from recycle.runtime.recover.view_reports import now

    plan, job, output = run.plan, run.plan.job, run.folder
    tokens = run.model.sequence * run.model.micro_batch_size * sum(job.loads)
    curves: dict[str, dict[float, float]] = {"training": {}, "held-out": {}}
    with TrainingProgress(console, plan, tokens, run.iterations) as progress:
        progress.say(f"starting {len(plan.programs)} servers, each with its part of the model and the text")

        def note(total: StepTotal) -> None:
            curve, step = ("held-out", total.step) if total.held_out else ("training", total.step + 1)
            curves[curve][step] = total.loss

        def warn(text: str) -> None:
            progress.note(InstantLine("warning", now(), None, text))

        board = TensorBoard(output / "tensorboard", tokens, warn)
        totals = Totals(progress.show, board.add, note)

        def watch(event: Line) -> None:
            progress.note(event)
            totals.add(event)
            if isinstance(event, IterationLine) and event.losses:
                # What servers tell here comes as they tell it. The losses of a step may be lost with their servers.
                totals.skip()

        try:
            yield watch
        finally:
            totals.finish()
            board.close()
            drawn = {name: sorted(curve.items()) for name, curve in curves.items() if curve}
            if drawn:
                title = f"{job.name}, {describe_dead(plan.dead)} dead" if plan.dead else job.name
                picture = draw_losses(title, drawn, marks_of(progress.history)).encode()
                with BestEffort(str(output / "loss.svg"), warn):
                    write_whole(output / "loss.svg", picture, private=True)
            progress.summarise()


class TrainingProgress:
    """Iteration, loss, time, servers and throughput in a line that changes; evaluations and events stay above it.

    Args:
        console: where to.
        plan: what is run at first.
        tokens: in an iteration.
        iterations: where training ends.

    Attributes:
        history: what has happened in the run so far.
    """

    def __init__(self, console: "Console", plan: Plan, tokens: int, iterations: int) -> None:
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
        self._began = time.monotonic()

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
        return self.history.measured(self._epoch) if self.history.has_changed and self._epoch is not None else None

    def _print(self, text: str) -> None:
        self._console.print(text)
