"""``recycle show``."""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from recycle.cli.console import make_console, print_json, progress_line, report_console
from recycle.cli.losses import draw_runs
from recycle.cli.options import Verb, json_option, load_legal_plan, refuse_unread
from recycle.cli.parameters import Count, InputPath, OutputFile
from recycle.errors import UserError
from recycle.files import STANDARD, resolved, write_whole
from recycle.plan.export import export_csv
from recycle.record.reading import recordings
from recycle.record.recording import PLAN, SETTINGS
from recycle.view import chrome_trace, html, svg
from recycle.view.chart import Grouping
from recycle.view.compare import describe
from recycle.view.panel import Panel, make_panels, summary_of
from recycle.view.subject import Subject, load_subject

ENCODERS = {"svg": svg.encode, "html": html.encode, "trace": chrome_trace.encode}
"""The views that are files, by their options."""

LARGE = 1 << 28
"""Bytes of recordings of which it is said that they take memory."""


@click.command("show", cls=Verb)
@click.argument("path", metavar="PLAN", type=InputPath())
@click.option(
    "--against",
    type=InputPath(),
    multiple=True,
    help="Draw another plan or run below on the same time axis, and print what differs; can be given several times.",
)
@click.option(
    "--by",
    "grouping",
    type=click.Choice(["stage", "pipeline"]),
    default="stage",
    show_default=True,
    help="Which servers are drawn together.",
)
@click.option(
    "--iterations",
    type=Count(1, 1000),
    help="How many iterations of a plan to draw (default 1), or how many of the last ones of a run (default all).",
)
@click.option("--list", "as_list", is_flag=True, help="One instruction per line, good for diff.")
@click.option("--svg", type=OutputFile(".svg"), help="Write a picture.")
@click.option("--html", type=OutputFile(".html"), help="Write a page to explore in a browser.")
@click.option("--trace", type=OutputFile(".json"), help="Write a trace for Perfetto or chrome://tracing.")
@click.option(
    "--losses",
    type=OutputFile(".svg"),
    help="Write a picture of a run's losses; with --against, print the largest difference from that run's.",
)
@click.option("--csv", type=OutputFile(".csv"), help="Write a plan's timed compute instructions, one per row.")
@json_option
def command(
    path: Path,
    against: tuple[Path, ...],
    grouping: Grouping,
    iterations: int | None,
    as_list: bool,
    losses: Path | None,
    csv: Path | None,
    as_json: bool,
    **files: Path | None,
) -> None:
    """Draw PLAN: a plan file, a recording of a run (.jsonl) or the directory of a run.

    Without a file to write, it is drawn in the terminal: a row per server, a column per time quantum, and at the end of
    each row its bubble and its peak memory. An illegal plan is refused: recycle check says what is wrong with it.

    --csv has the columns server, chunk, op, home, micro_batch, start and end.
    With --losses and --against, the exit status is 1 if the two runs have no iteration in common.

    \b
    recycle show plan.json --html plan.html
    recycle show run --losses losses.svg --against undisturbed
    """
    wanted = {name: target for name in ENCODERS if (target := files[name]) is not None}
    refuse_places([path, *against], [*wanted.values(), *filter(None, (losses, csv))], as_list, as_json)
    if not (wanted or as_json) and (as_list or csv or losses):
        refuse_unread("a list, or a file of figures,", "--by")
    if not (wanted or as_json or as_list) and (csv or losses):
        refuse_unread("a file of figures", "--iterations")
        if losses is None:
            refuse_unread("a file of instructions", "--against")
    if csv is not None:
        write_whole(csv, export_csv(load_legal_plan(path)).encode())
        report_console(csv).print(f"written to {csv}")
    comparable = True
    if losses is not None:
        if len(against) > 1:
            raise UserError("--losses: it compares a run with one other; give --against once")
        comparable = draw_runs(path, against[0] if against else None, losses)
    if (csv or losses) and not (wanted or as_list or as_json):
        sys.exit(not comparable)
    if iterations is None:
        for each in (path, *against):
            advise(each)
    with uncollected():
        with progress_line("reading"):
            subjects = [load_subject(each, iterations) for each in (path, *against)]
        with progress_line("drawing"):
            panels = make_panels(subjects, grouping)
        for name, target in wanted.items():
            with progress_line("drawing"):
                content = ENCODERS[name](panels)
            write_whole(target, content)
        if as_json:
            print_json([summary(*each) for each in zip(subjects, panels, strict=True)])
        elif as_list:
            print_lists(subjects)
        elif wanted:
            for target in wanted.values():
                report_console(target).print(f"written to {target}")
            if STANDARD not in wanted.values():
                for subject in subjects:
                    print_summary(subject)
        else:
            print_panels(panels)
            for subject in subjects:
                print_events(subject)
                print_summary(subject)


def advise(path: Path) -> None:
    """Say of large recordings that they take memory, and how they take little."""
    size = sum(file.stat().st_size for file in recordings(path)) if path.is_dir() else 0
    if size > LARGE:
        make_console(error=True).print(
            f"{path}: all instructions of {size / 1e9:.1f} GB of recordings are read into memory; "
            "--iterations 20 keeps those of the last 20 iterations"
        )


def refuse_places(shown: Sequence[Path], targets: Sequence[Path], as_list: bool, as_json: bool) -> None:
    """See that each of the things that were asked for has a place of its own.

    Args:
        shown: the plans and runs.
        targets: the files.
        as_list: whether instructions go to standard output.
        as_json: whether figures go there.

    Raises:
        UserError: two of them go to one place, or one to that of what is shown.
    """

    def place(path: Path) -> Path:
        return path if path == STANDARD else resolved(path)

    read = {place(each) / name for each in shown if each != STANDARD for name in ("", PLAN, SETTINGS)}
    written = [*map(place, targets), *[STANDARD] * (as_list + as_json)]
    for each in (*targets, STANDARD):
        if written.count(place(each)) > 1:
            name = "standard output" if each == STANDARD else each
            raise UserError(f"{name}: two options write there; leave one of them out, or give it another file")
        if place(each) in read:
            raise UserError(f"{each}: it is shown, and would be overwritten; give another file")


def print_panels(panels: Sequence[Panel]) -> None:
    """Draw in the terminal; letters where it has few colours, or none."""
    from recycle.view.terminal import draw

    console = make_console()
    # Sixteen colours do not tell the instructions apart.
    color = console.color_system in ("256", "truecolor") and not console.no_color
    drawn = draw([panel.chart for panel in panels], console.width, [panel.pace for panel in panels], color=color)
    for panel, lines in zip(panels, drawn, strict=True):
        if len(panels) > 1:
            console.print(f"{panel.name}:", style="bold")
        for line in lines:
            console.print(line)
    for panel in panels:
        if panel.comparison:
            if len(panels) > 2:
                console.print(f"{panel.name} against {panels[0].name}:", style="bold")
            for text in describe(panel.comparison, panels[0].timeline, panel.timeline):
                console.print(text)


def print_events(subject: Subject) -> None:
    """Print what happened in a run, a line per event."""
    from recycle.view.history import tell

    history, console = subject.history, make_console()
    if history is not None:
        for event in history.events:
            console.print(tell(event, history.servers, history.time_unit))


def print_summary(subject: Subject) -> None:
    """Print what happened in a run in a few lines."""
    console = make_console()
    for line in summary_of(subject):
        console.print(line)


def print_lists(subjects: Sequence[Subject]) -> None:
    """Print instructions line by line."""
    from recycle.view.terminal import listing

    console = make_console(color=False)
    for subject in subjects:
        console.out("\n".join(listing(subject)), highlight=False)


def summary(subject: Subject, panel: Panel) -> dict[str, Any]:
    """The figures at the head of a drawing, for other programs; times in the job's unit."""
    chart, history = panel.chart, subject.history
    return {
        "name": subject.name,
        "source": subject.timeline.source,
        "time_unit": chart.time_unit,
        "period": chart.period,
        "windows": [
            {"stage": each.stage, "iteration": each.iteration, "start": each.start, "end": each.end}
            for each in chart.windows
        ],
        "deaths": history.deaths if history else (),
        "changes": history.changes if history else (),
        "costs": [history.cost(each.view.epoch) for each in history.changes] if history else (),
        "copies": subject.copies,
        "servers": [
            {
                "server": str(row.server),
                "role": str(row.role),
                "dead": row.dead,
                "busy": row.busy,
                "bubble": round(row.bubble, 6),
                "peak_memory": row.peak,
                "moved": {str(server): units for server, units in row.moved.items()},
            }
            for row in chart.rows()
        ],
    }


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector: a large plan has no cycles, and the search for them takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
