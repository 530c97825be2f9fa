"""``recycle study``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recycle.cli.console import make_console, print_json, progress_line
from recycle.cli.options import JobCommand, describe_job, job_options, json_option
from recycle.cli.parameters import DURATION, Count
from recycle.errors import UserError
from recycle.job import Job
from recycle.wording import plural

if TYPE_CHECKING:
    from recycle.study.compare import PolicyComparison, StudySetting


@click.command("study", cls=JobCommand)
@job_options
@click.option(
    "--trace",
    default="language-model-cluster",
    show_default=True,
    help="A trace or fault file, or one that comes along: language-model-cluster, shared-gpus.",
)
@click.option("--speed", type=float, default=1.0, show_default=True, help="Replay the trace so many times faster.")
@click.option("--policy", "policies", default="", metavar="NAME[,NAME...]", help="What is compared; default: all.")
@click.option("--iteration", type=DURATION, help="Of a fault-free iteration.")
@click.option("--layers", type=Count(1), help="Of the model; default: eight per stage.")
@click.option("--seeds", type=Count(1, 100), default=3, show_default=True, help="Deals of the trace.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder for the page and CSV.")
@json_option
@click.option(
    "--sweep",
    "axes",
    metavar="AXIS=N[,N...] ...",
    help="A map over mtbf (of a server, as 240d), servers and micro-batches instead of one comparison.",
)
@click.option("--advise", "wants_advice", is_flag=True, help="What the job's own choices are worth, instead.")
def command(
    job: Job,
    trace: str,
    speed: float,
    policies: str,
    iteration: float | None,
    layers: int | None,
    seeds: int,
    output: Path | None,
    as_json: bool,
    axes: str | None,
    wants_advice: bool,
) -> None:
    """Replay failures over JOB with different ways of surviving, and compare the training that is left.

    \b
    recycle study job.toml --trace language-model-cluster --policy ours,oobleck,checkpoints -o out/
    recycle study job.toml --sweep "servers=100,1000 micro-batches=6,64" -o out/
    recycle study job.toml --advise
    """
    from recycle.study.compare import compare

    setting = _setting(job, trace, speed, policies, iteration, layers, seeds)
    if axes is not None and wants_advice:
        raise UserError("--sweep and --advise: leave one of them out")
    if axes is not None:
        _sweep(setting, axes, output, as_json)
        return
    if wants_advice:
        _advise(setting, as_json)
        return
    with progress_line("dealing the trace") as show:
        comparisons = compare(setting, show)
    if output is not None:
        _write(output, setting, comparisons)
    if as_json:
        print_json([_without_spans(each) for each in comparisons])
        return
    _print(setting, comparisons)
    if output is not None:
        make_console().print(f"written to {output / 'index.html'}", markup=False)
    sys.exit(0)


def _setting(
    job: Job, trace: str, speed: float, policies: str, iteration: float | None, layers: int | None, seeds: int
) -> "StudySetting":
    from recycle.faults.outages import load_outages
    from recycle.study.compare import StudySetting, iteration_seconds
    from recycle.study.rates import Ground
    from recycle.study.registry import ALL, parse_policies

    names = parse_policies(policies) or ALL
    job.require_standard("a study")
    outages = load_outages(trace, job, speed)
    size = job.pipelines * job.depth
    failures = outages.failures_per_second * size / outages.nodes
    seconds = iteration_seconds(job) if iteration is None else iteration
    return StudySetting(Ground(job, seconds, layers or 8 * job.depth, failures), outages, names, seeds)


def _print(setting: "StudySetting", comparisons: "Sequence[PolicyComparison]") -> None:
    outages = setting.outages
    at_end = f"; {plural(outages.at_end, 'failure')} at its very end counted as none" if outages.at_end else ""
    make_console().print(
        f"{describe_job(setting.ground.job)}, {setting.ground.iteration:g} s an iteration; {outages.name}: "
        f"{outages.seconds / 86_400:.4g} days, {len(comparisons[0].outcome.failures)} times servers failed{at_end}",
        style="bold",
        markup=False,
    )
    rows = [["policy", "value", "low", "high", "servers", "hours lost", "most of it"]]
    for each in comparisons:
        outcome = each.outcome
        lost = sorted(
            ((seconds, bucket.value) for bucket, seconds in outcome.buckets.items() if bucket.value != "useful"),
            reverse=True,
        )
        rows.append(
            [
                each.policy + (" (model only)" if each.model_only else ""),
                f"{each.mean:.4f}",
                f"{each.low:.4f}",
                f"{each.high:.4f}",
                str(outcome.paid),
                f"{outcome.lost_hours:,.0f}",
                ", ".join(f"{name} {seconds / (outcome.paid * outcome.seconds):.1%}" for seconds, name in lost[:2]),
            ]
        )
    _print_columns(rows, left=(0, 6))
    make_console().print("value: useful samples per server-hour paid for, over those of the fault-free job")


def _sweep(setting: "StudySetting", text: str, output: Path | None, as_json: bool) -> None:
    from recycle.files import write_whole
    from recycle.study.registry import NO_RIVALS
    from recycle.study.sweep import parse_axes, sweep, sweep_table

    with progress_line("map") as show:
        cells = sweep(setting, parse_axes(text), show)
    if output is not None:
        _make_folder(output)
        write_whole(output / "sweep.csv", sweep_table(cells))
    if as_json:
        print_json(cells)
        return
    ours = [name for name in setting.policies if name in NO_RIVALS]
    rows = [["mtbf", "servers", "micro-batches", *ours, "best rival", "", "not ahead of, with their best constants"]]
    for cell in cells:
        behind = [
            f"{name}: {', '.join(cell.loses(name))}" for name in ours if name != "fault-scaled" and cell.loses(name)
        ]
        rows.append(
            [
                f"{cell.mtbf / 86_400:g} d" if cell.mtbf else "trace",
                str(cell.servers),
                str(cell.micro_batches),
                *(cell.text(name) for name in ours),
                cell.rival,
                cell.text(cell.rival) if cell.rival else "",
                "; ".join(behind),
            ]
        )
    _print_columns(rows, left=(len(ours) + 3, len(ours) + 5))


def _advise(setting: "StudySetting", as_json: bool) -> None:
    from recycle.study.advise import advise

    with progress_line("advice") as show:
        choices = advise(setting, show)
    if as_json:
        print_json(choices)
        return
    rows = [["what", "choice", "lost a year", "saved a year", ""]]
    rows += [
        [
            each.topic,
            each.choice,
            f"{each.lost:,.0f}",
            "" if each.is_present else f"{each.saved:+,.0f}",
            "as it is" if each.is_present else "model only" if each.model_only else "",
        ]
        for each in choices
    ]
    _print_columns(rows, left=(0, 1, 4))
    make_console().print("in server-hours that are paid for and leave no training, by re-routing")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror}") from error


def _print_columns(rows: "Sequence[Sequence[str]]", left: "Sequence[int]") -> None:
    """A table as wide as it is: with a header, and columns to the right but for those on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    console = make_console()
    for number, row in enumerate(rows):
        cells = (
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        console.print("  ".join(cells).rstrip(), markup=False, style=None if number else "bold")


def _write(folder: Path, setting: "StudySetting", comparisons: "Sequence[PolicyComparison]") -> None:
    from recycle.files import write_whole
    from recycle.study.compare import retention
    from recycle.study.page import page
    from recycle.study.tables import write_tables

    _make_folder(folder)
    with progress_line("retention") as show:
        curves = retention(setting)
        write_tables(folder, comparisons, curves)
        show("plots")
        write_whole(folder / "index.html", page(setting, comparisons, curves).encode())


def _without_spans(each: "PolicyComparison") -> dict[str, object]:
    outcome = each.outcome
    return {
        "policy": each.policy,
        "model_only": each.model_only,
        "value": each.mean,
        "low": each.low,
        "high": each.high,
        "servers": outcome.paid,
        "lost_server_hours": outcome.lost_hours,
        "buckets": {bucket.value: seconds for bucket, seconds in outcome.buckets.items()},
    }
