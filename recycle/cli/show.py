"""``recycle show``."""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from recycle.cli.console import make_console, print_json, progress_line, report_console
from recycle.cli.losses import draw_runs
from recycle.cli.options import Verb, json_option, load_legal_plan, refuse_unread
from recycle.cli.parameters import Count, InputPath, OutputFile, Whole
from recycle.errors import IllegalPlan, UserError
from recycle.files import STANDARD, write_whole
from recycle.plan.export import export_csv, export_torch
from recycle.plan.plan import Plan
from recycle.record.reading import recordings
from recycle.view.chart import Chart, Grouping
from recycle.view.compare import describe
from recycle.view.files import FILE_VIEWS, FileView
from recycle.view.panel import Panel, make_panels, summary_of
from recycle.view.subject import Subject, load_subject

Command = Callable[..., None]

MANY = 10_000
"""Instructions of which it is said what a picture costs."""

LARGE = 1 << 28
"""Bytes of recordings of which it is said that they take memory."""


def file_options(command: Command) -> Command:
    """An option for each view that is a file."""
    for view in reversed(FILE_VIEWS):
        command = click.option(f"--{view.option}", type=OutputFile(*view.endings), help=view.help)(command)
    return command


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
@file_options
@click.option(
    "--losses",
    type=OutputFile(".svg"),
    help="Write a picture of a run's losses; with --against, print the largest difference from that run's.",
)
@click.option("--csv", type=OutputFile(".csv"), help="Write a plan's timed compute instructions, one per row.")
@click.option("--torch", type=OutputFile(".csv"), help="Write a plan as a schedule for torch.distributed.pipelining.")
@click.option("--pipeline", type=Whole(), default=0, show_default=True, help="Which pipeline --torch is made of.")
@json_option
def command(
    path: Path,
    against: tuple[Path, ...],
    grouping: Grouping,
    iterations: int | None,
    as_list: bool,
    losses: Path | None,
    csv: Path | None,
    torch: Path | None,
    pipeline: int,
    as_json: bool,
    **files: Path | None,
) -> None:
    """Draw PLAN: a plan file, a recording of a run (.jsonl) or the directory of a run.

    Without a file to write, it is drawn in the terminal: a row per server, a column per time quantum, and at the end of
    each row its bubble and its peak memory. An illegal plan is drawn with the wrong instructions marked.

    --csv has the columns server, chunk, op, home, micro_batch, start and end.
    --torch has a row per rank, for _PipelineScheduleRuntime; it exists for plans without re-routing. With --losses and
    --against, the exit status is 1 if the two runs have no iteration in common.

    \b
    recycle show plan.json --html plan.html
    recycle show run --losses losses.svg --against undisturbed
    """
    wanted = [(view, target) for view in FILE_VIEWS if (target := files[view.option]) is not None]
    refuse_places([*(target for _, target in wanted), *filter(None, (losses, csv, torch))], as_list, as_json)
    if torch is None:
        refuse_unread("what is written without --torch", "--pipeline")
    if not (wanted or as_json) and (as_list or csv or torch or losses):
        refuse_unread("a list, or a file of figures,", "--by")
    if not (wanted or as_json or as_list) and (csv or torch or losses):
        refuse_unread("a file of figures", "--iterations")
        if losses is None:
            refuse_unread("a file of instructions", "--against")
    if csv is not None or torch is not None:
        export(load_legal_plan(path), csv, torch, pipeline)
    comparable = True
    if losses is not None:
        if len(against) > 1:
            raise UserError("--losses: it compares a run with one other; give --against once")
        comparable = draw_runs(path, against[0] if against else None, losses)
    if any((csv, torch, losses)) and not (wanted or as_list or as_json):
        sys.exit(not comparable)
    if iterations is None:
        for each in (path, *against):
            advise(each)
    with uncollected():
        with progress_line("reading"):
            subjects = [load_subject(each, iterations) for each in (path, *against)]
        panels = lay_out(subjects, grouping, in_files=bool(wanted))
        write_views(wanted, panels)
        if as_json:
            print_figures(subjects, panels)
        elif as_list or not panels:
            print_lists(subjects)
        elif wanted:
            for _, target in wanted:
                report_console(target).print(f"written to {target}")
            if STANDARD not in (target for _, target in wanted):
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


def refuse_places(targets: Sequence[Path], as_list: bool, as_json: bool) -> None:
    """See that each of the things that were asked for has a place of its own.

    Args:
        targets: the files.
        as_list: whether instructions go to standard output.
        as_json: whether figures go there.

    Raises:
        UserError: two of them go to one place.
    """
    places = [*targets, *[STANDARD] * (as_list + as_json)]
    for each in places:
        if places.count(each) > 1:
            name = "standard output" if each == STANDARD else each
            raise UserError(f"{name}: two options write there; leave one of them out, or give it another file")


def export(plan: Plan, csv: Path | None, torch: Path | None, pipeline: int) -> None:
    """Write a plan in forms that other programs read.

    Args:
        plan: a legal one.
        csv: where its timed compute instructions go, if anywhere.
        torch: where its schedule for torch goes, if anywhere.
        pipeline: which one the schedule is made of.
    """
    # Not every plan has a schedule for torch.
    texts = {torch: export_torch(plan, pipeline) if torch else "", csv: export_csv(plan) if csv else ""}
    for target, text in texts.items():
        if target is not None:
            write_whole(target, text.encode())
            report_console(target).print(f"written to {target}")


def lay_out(subjects: Sequence[Subject], grouping: Grouping, *, in_files: bool) -> list[Panel]:
    """What is drawn of some plans and runs; nothing if one of them deadlocks.

    Raises:
        IllegalPlan: one deadlocks, and files are wanted.
    """
    stuck = [each.name for each in subjects if each.timeline is None]
    if stuck and in_files:
        raise IllegalPlan(f"{stuck[0]} deadlocks, so its instructions have no times to draw; --list shows their order")
    with progress_line("drawing"):
        return [] if stuck else make_panels(subjects, grouping)


def write_views(wanted: Sequence[tuple[FileView, Path]], panels: Sequence[Panel]) -> None:
    """Write files of panels, and say what large ones will cost."""
    boxes = sum(len(row.spans) for panel in panels for row in panel.chart.rows())
    for view, target in wanted:
        if view.cost is not None and boxes > MANY:
            each, unit = view.cost
            make_console(error=True).print(
                f"--{view.option}: {boxes:,} instructions are drawn, about {boxes * each:.0f} {unit}; "
                "--html FILE.html has servers folded into bands"
            )
        with progress_line("drawing"):
            content = view.encode(panels, target)
        write_whole(target, content)


def print_panels(panels: Sequence[Panel]) -> None:
    """Draw in the terminal; letters where it has no colours."""
    from recycle.view.terminal import Colours, draw

    console = make_console()
    colours: Colours = "few" if console.color_system in ("standard", "windows") else "full"
    if console.color_system is None or console.no_color:
        colours = "none"
    drawn = draw([panel.chart for panel in panels], console.width, colours, [panel.pace for panel in panels])
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
    """Print instructions line by line, and before them what is wrong with them as a whole."""
    from recycle.view.terminal import listing

    console = make_console(color=False)
    for subject in subjects:
        if subject.timeline is None:
            console.print(f"# {subject.name} deadlocks: its instructions have no times, and this is their order")
        console.out("\n".join(listing(subject)), highlight=False)


def print_figures(subjects: Sequence[Subject], panels: Sequence[Panel]) -> None:
    """Print what is at the heads of drawings, for other programs."""
    charts: Sequence[Chart | None] = [panel.chart for panel in panels] or [None] * len(subjects)
    print_json([summary(subject, chart) for subject, chart in zip(subjects, charts, strict=True)])


def summary(subject: Subject, chart: Chart | None) -> dict[str, Any]:
    """The figures at the head of a drawing, for other programs; times in the job's unit."""
    return {
        "name": subject.name,
        "source": subject.timeline.source if subject.timeline else None,
        "time_unit": chart.time_unit if chart else None,
        "period": chart.period if chart else None,
        "problems": subject.problems,
        "windows": [
            {"stage": each.stage, "iteration": each.iteration, "start": each.start, "end": each.end}
            for each in (chart.windows if chart else ())
        ],
        "deaths": subject.history.deaths if subject.history else (),
        "changes": subject.history.changes if subject.history else (),
        "costs": [subject.history.cost(each.view.epoch) for each in subject.history.changes] if subject.history else (),
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
            for row in (chart.rows() if chart else ())
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
