"""A training run as the console shows it, from its start to its summary."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from recycle.cli.console import make_console
from recycle.cli.losses import marks_of
from recycle.cli.options import describe_dead, describe_job
from recycle.faults.menu import Faults
from recycle.files import write_whole
from recycle.record.best_effort import BestEffort
from recycle.record.recording import InstantLine, Line
from recycle.view.losses import draw_losses
from recycle.wording import throughput_text

if TYPE_CHECKING:
    from rich.console import Console

    from recycle.megatron.gpt.run import Run
    from recycle.runtime.launch.meet.rendezvous import Rendezvous


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
    console.print(describe_job(plan.job), markup=False)
    console.print(f"dead       {describe_dead(plan.dead)}")
    first = min(plan.programs)
    console.print(
        f"processes  pgrep -f 'recycle: {first}( |$)' finds a server, recycle kill {output} {first} kills it",
        markup=False,
    )
    throughput = throughput_text(plan.throughput, plan.job.baseline_name)
    console.print(f"plan       period {plan.job.time_text(plan.period)}, {throughput}")
    if untried := untried_release():
        console.print(f"torch      {untried}", markup=False)
    with shown(run, console) as watch:
        train(run, watch, planning.make, faults, meeting, planning.mover)
    tell_where(console, output)


@contextmanager
def shown(run: "Run", console: "Console", began: float | None = None) -> Iterator[Callable[[Line], None]]:
    """Show how a run goes, and at its end what happened; in the terminal, for TensorBoard, and as a picture.

    Args:
        run: which.
        console: where to.
        began: when it began, on the monotonic clock in seconds; now if that is not known.

    Yields:
        What takes all that is recorded.
    """
    from recycle.cli.run.progress import TrainingProgress
    from recycle.record.totals import StepTotal, Totals
    from recycle.runtime.launch.supervise.tensorboard import TensorBoard
    from recycle.runtime.recover.view_reports import now

    plan, job, output = run.plan, run.plan.job, run.folder
    tokens = run.model.sequence * run.model.micro_batch_size * sum(job.loads)
    curves: dict[str, dict[float, float]] = {"training": {}, "held-out": {}}
    with TrainingProgress(console, plan, tokens, run.iterations, began) as progress:
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


def tell_where(console: "Console", output: Path) -> None:
    """Say where everything is to be found."""
    console.print(f"written to {output}: plan.json, events, checkpoints, tensorboard, loss.svg", markup=False)
    page = output / "run.html"
    console.print(
        f"look at    recycle show {output} --html {page}: what each server did, and each recovery", markup=False
    )
