"""``recycle losses``."""

import sys
from pathlib import Path
from typing import NamedTuple

import click

from recycle.cli.console import make_console
from recycle.cli.parameters import OutputFile
from recycle.errors import UserError
from recycle.files import write_whole
from recycle.record.history import History
from recycle.record.reading import load_lines
from recycle.record.recording import ViewLine
from recycle.record.totals import StepTotal, Totals
from recycle.view.losses import Mark, compare_losses, draw_losses


class Losses(NamedTuple):
    """What a run left of its losses.

    Attributes:
        curve: (iteration, loss) by iteration, from 1; where an iteration was reported twice, the later value.
        history: the deaths, views and rejoins of the run.
    """

    curve: list[tuple[float, float]]
    history: History


@click.command("losses")
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--against", type=click.Path(path_type=Path), help="The run to compare with, such as one without failures."
)
@click.option(
    "-o",
    "--output",
    type=OutputFile(".svg"),
    default="loss.svg",
    show_default=True,
    help="Where to write the picture.",
)
def command(path: Path, against: Path | None, output: Path) -> None:
    """Draw the losses of RUN, the directory of a run, with its failures and rejoins.

    With --against, the largest difference from another run is printed, relative to that run's loss. The exit status is
    1 if the two have no iteration in common.

    \b
    recycle losses run --against undisturbed -o loss.svg
    """
    console = make_console()
    run = load_losses(path)
    names = [path.name, against.name if against else ""]
    if against and names[0] == names[1]:
        names = [str(path), str(against)]
    curves = {names[0]: run.curve}
    status = 0
    if against:
        reference = load_losses(against)
        curves = {names[1]: reference.curve, names[0]: run.curve}
        difference = compare_losses(run.curve, reference.curve)
        if difference is None:
            click.echo(f"recycle: {path} and {against} have no iteration in common", err=True)
            status = 1
        else:
            console.print(
                f"largest difference {difference.largest:.2g} at iteration {difference.step:g} "
                f"over {difference.steps} iterations"
            )
    title = f"{names[0]} over {names[1]}" if against else names[0]
    write_whole(output, draw_losses(title, curves, marks_of(run.history), names[:1] if against else ()).encode())
    console.print(f"written to {output}", markup=False)
    sys.exit(status)


def load_losses(path: Path) -> Losses:
    """The losses of a run, from its recordings.

    Raises:
        UserError: they cannot be read, or have no losses.
    """
    losses: dict[float, float] = {}

    def take(total: StepTotal) -> None:
        if not total.held_out:
            losses[total.step + 1] = total.loss

    totals, history = Totals(take), History()
    lines = list(load_lines(path))
    views = sorted((line for line in lines if isinstance(line, ViewLine)), key=lambda view: view.epoch)
    for line in [*views, *lines]:
        totals.add(line)
        history.add(line)
    totals.finish()
    if not losses:
        raise UserError(f"{path}: no losses here: give the directory of a run that trained for an iteration or more")
    return Losses(sorted(losses.items()), history)


def marks_of(history: History) -> list[Mark]:
    """The failures and rejoins of a run, at the iterations that the views after them began with."""
    marks = []
    for change in history.changes:
        iteration = change.view.step + 1
        marks += [Mark(iteration, f"{death.server} died", good=False) for death in change.deaths]
        marks += [Mark(iteration, f"{server} is back", good=True) for server, _ in change.joined]
    return marks
