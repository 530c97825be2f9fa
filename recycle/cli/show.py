"""``recycle show``."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from recycle.cli.console import make_console, print_json
from recycle.cli.options import json_option
from recycle.errors import IllegalPlan, UserError
from recycle.files import write_whole
from recycle.record.timeline import Timeline
from recycle.view.chart import Chart, Grouping, make_chart
from recycle.view.compare import Comparison, compare, describe
from recycle.view.subject import Subject, load_subject

FILES = {
    "svg": "Write a picture.",
    "figure": "Write a picture as PNG or PDF, by the file's ending.",
    "html": "Write a page to explore in a browser.",
    "trace": "Write a trace for Perfetto or chrome://tracing.",
}


@click.command("show")
@click.argument("path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--against", type=click.Path(path_type=Path), help="Draw another plan or run below, and print what differs."
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
    type=click.IntRange(1, 1000),
    help="How many iterations of a plan to draw (default 1), or how many of the last ones of a run (default all).",
)
@click.option("--list", "as_list", is_flag=True, help="One instruction per line, good for diff.")
@click.option("--svg", type=click.Path(path_type=Path), help=FILES["svg"])
@click.option("--figure", type=click.Path(path_type=Path), help=FILES["figure"])
@click.option("--html", type=click.Path(path_type=Path), help=FILES["html"])
@click.option("--trace", type=click.Path(path_type=Path), help=FILES["trace"])
@click.option("--strict", is_flag=True, help="Refuse an illegal plan with exit status 1 instead of drawing it.")
@click.option("--no-color", is_flag=True, help="Letters instead of colours.")
@json_option
def command(
    path: Path,
    against: Path | None,
    grouping: Grouping,
    iterations: int | None,
    as_list: bool,
    strict: bool,
    no_color: bool,
    as_json: bool,
    **files: Path | None,
) -> None:
    """Draw PLAN: a plan file, a recording of a run (.jsonl) or the directory of a run.

    Without a file to write, it is drawn in the terminal: a row per server, a column per time quantum, and at the end of
    each row its bubble and its peak memory. An illegal plan is drawn with the wrong instructions marked.
    """
    wanted = {kind: target for kind, target in files.items() if target is not None}
    with uncollected():
        subjects = [load_subject(each, iterations) for each in ([path, against] if against else [path])]
        if strict:
            for subject in subjects:
                if subject.violations:
                    raise IllegalPlan(f"{subject.name} is illegal: {subject.problems[0]}")
        timelines = [each.timeline for each in subjects if each.timeline is not None]
        stuck = [each.name for each in subjects if each.timeline is None]
        if stuck and wanted:
            raise IllegalPlan(
                f"{stuck[0]} deadlocks, so its instructions have no times to draw; --list shows their order"
            )
        charts = [] if stuck else [make_chart(*each, grouping) for each in zip(subjects, timelines, strict=True)]
        comparison = compare(*timelines) if len(charts) == 2 else None
        for kind, target in wanted.items():
            write_whole(target, encode(kind, target, subjects, charts, timelines, comparison))
        if as_json:
            print_json([summary(subject, charts[place] if charts else None) for place, subject in enumerate(subjects)])
        elif as_list or stuck:
            print_lists(subjects)
        elif not wanted:
            print_charts(subjects, charts, timelines, comparison, color=not no_color)
            for subject in subjects:
                print_history(subject)


def encode(
    kind: str,
    target: Path,
    subjects: Sequence[Subject],
    charts: Sequence[Chart],
    timelines: Sequence[Timeline],
    comparison: Comparison | None,
) -> bytes:
    """The content of a file of one kind.

    Raises:
        UserError: the kind of file cannot be made of this.
    """
    pace = comparison.pace if comparison else 1.0
    if kind == "svg":
        from recycle.view.svg import draw

        return draw(charts, pace).encode()
    if kind == "html":
        from recycle.view.html import Panel, page

        panels = [
            Panel(subject.name, chart, timeline, comparison if place else None)
            for place, (subject, chart, timeline) in enumerate(zip(subjects, charts, timelines, strict=True))
        ]
        return page(panels).encode()
    if kind == "trace":
        from recycle.view.trace import Part, encode, microseconds

        scale = microseconds(timelines[0].time_unit)
        return encode(
            [
                Part(subject.name if len(charts) > 1 else "", chart, timeline, scale / (pace if place else 1.0))
                for place, (subject, chart, timeline) in enumerate(zip(subjects, charts, timelines, strict=True))
            ]
        )
    from recycle.view.figure import FORMATS, draw_figure

    form = target.suffix.lstrip(".").lower()
    if form not in FORMATS:
        raise UserError(f"{target}: a figure is a PNG or a PDF; end its name in .png or .pdf, or use --svg or --html")
    if len(charts) > 1:
        raise UserError("--figure draws one schedule; use --svg or --html to draw two")
    return draw_figure(charts[0], form)


def print_charts(
    subjects: Sequence[Subject],
    charts: Sequence[Chart],
    timelines: Sequence[Timeline],
    comparison: Comparison | None,
    *,
    color: bool,
) -> None:
    """Draw in the terminal; letters where it has no colours."""
    from recycle.view.terminal import draw

    console = make_console(color=color)
    color = color and console.color_system is not None and not console.no_color
    for subject, chart in zip(subjects, charts, strict=True):
        if len(charts) > 1:
            console.print(f"{subject.name}:", style="bold", markup=False)
        for line in draw(chart, console.width, color):
            console.print(line)
    if comparison:
        for text in describe(comparison, *timelines):
            console.print(text, markup=False)


def print_history(subject: Subject) -> None:
    """Print what happened in a run: a line per event, and a summary."""
    from recycle.view.history import summarise, tell

    if subject.history is None:
        return
    console, history = make_console(), subject.history
    for news in history.news:
        console.print(tell(news, history.servers, history.time_unit), markup=False)
    for line in summarise(history, history.servers):
        console.print(line, markup=False)


def print_lists(subjects: Sequence[Subject]) -> None:
    """Print instructions line by line, and before them what is wrong with them as a whole."""
    from recycle.view.terminal import listing

    console = make_console(color=False)
    for subject in subjects:
        if subject.timeline is None:
            console.print(
                f"# {subject.name} deadlocks: its instructions have no times, and this is their order", markup=False
            )
        console.out("\n".join(listing(subject)), highlight=False)


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
