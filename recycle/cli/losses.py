"""The loss curves of runs, as ``recycle show --losses`` draws them."""

from pathlib import Path
from typing import NamedTuple

import click

from recycle.cli.console import report_console
from recycle.errors import UserError
from recycle.files import write_whole
from recycle.record.history import History, history_of
from recycle.record.reading import load_lines
from recycle.record.totals import totals_of
from recycle.view.losses import Mark, compare_losses, draw_losses
from recycle.wording import printable


class Losses(NamedTuple):
    """What a run left of its losses.

    Attributes:
        curve: (iteration, loss) by iteration, from 1; where an iteration was reported twice, the later value.
        history: the deaths, views and rejoins of the run.
    """

    curve: list[tuple[float, float]]
    history: History


def draw_runs(path: Path, against: Path | None, output: Path) -> bool:
    """Draw the losses of a run with its failures and rejoins, over those of another one if that is given.

    Prints the largest difference from the other run, relative to its loss; gives whether the two can be compared.

    Raises:
        UserError: a run cannot be read, or has no losses.
    """
    run, console = load_losses(path), report_console(output)
    names = [path.name, against.name if against else ""]
    if against and names[0] == names[1]:
        names = [str(path), str(against)]
    names = [*map(printable, names)]
    curves = {names[0]: run.curve}
    comparable = True
    if against:
        reference = load_losses(against)
        curves = {names[1]: reference.curve, names[0]: run.curve}
        difference = compare_losses(run.curve, reference.curve)
        comparable = difference is not None
        if difference is None:
            click.echo(f"recycle: {path} and {against} have no iteration in common", err=True)
        else:
            console.print(
                f"largest difference {difference.largest:.2g} at iteration {difference.step:g} "
                f"over {difference.steps} iterations"
            )
    title = f"{names[0]} over {names[1]}" if against else names[0]
    write_whole(output, draw_losses(title, curves, marks_of(run.history), names[:1] if against else ()).encode())
    console.print(f"written to {output}")
    return comparable


def load_losses(path: Path) -> Losses:
    """The losses of a run, from its recordings.

    Raises:
        UserError: they cannot be read, or have no losses.
    """
    facts = list(load_lines(path, facts=True))
    losses = [(total.step + 1.0, total.loss) for total in totals_of(facts) if not total.held_out]
    if not losses:
        raise UserError(f"{path}: no losses here: give the directory of a run that trained for an iteration or more")
    return Losses(losses, history_of(facts))


def marks_of(history: History) -> list[Mark]:
    """The failures, departures and rejoins of a run, at the iterations that the views after them began with."""
    marks = []
    for change in history.changes:
        iteration = change.view.step + 1
        for death in change.deaths:
            marks.append(Mark(iteration, f"{death.server} {'left' if death.left else 'died'}", good=False))
        marks += [Mark(iteration, f"{server} is back", good=True) for server, _ in change.joined]
    return marks
