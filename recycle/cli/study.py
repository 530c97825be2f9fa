"""``recycle study``."""

import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recycle.cli.console import make_console, print_json, progress_line
from recycle.cli.options import JobCommand, describe_job, job_options, json_option, refuse_unread
from recycle.cli.parameters import DURATION, Count, OutputFolder, Parsed
from recycle.errors import UserError
from recycle.job import Job
from recycle.wording import plural

if TYPE_CHECKING:
    from recycle.study.answer import StudyAnswer
    from recycle.study.compare import StudySetting
    from recycle.study.failures import FailureHistory

SHIPPED = "language-model-cluster"
PAGE, MAP = "index.html", "sweep.csv"


def _constant(text: str) -> tuple[str, float]:
    from recycle.study.constants import parse_constant

    return parse_constant(text)


@click.command("study", cls=JobCommand)
@job_options
@click.option(
    "--trace",
    help=f"A trace or fault file, or one that comes along: {SHIPPED}, shared-gpus.  [default: {SHIPPED}]",
)
@click.option("--servers", type=Count(1), help="Servers that the trace is of, if it does not say.")
@click.option("--mtbf-of-job", type=DURATION, help="Instead of a trace: mean time between two failures of the job.")
@click.option("--repair", type=DURATION, help="With it: mean time from a server's failure to its return.")
@click.option(
    "--policy",
    "policies",
    default="",
    metavar="NAME[,NAME...]",
    help="What is compared; default: all.",
)
@click.option("--iteration", type=DURATION, help="Of a fault-free iteration; default: by the job's costs, or 10s.")
@click.option("--layers", type=Count(1), help="Of the model; default: eight per stage.")
@click.option(
    "--checkpoint-interval",
    type=DURATION,
    help="Training between two checkpoints of every policy; default: Young's for restarts, and free ones for others.",
)
@click.option("--checkpoint-cost", type=DURATION, help="Standing still for a checkpoint.")
@click.option("--restart", type=DURATION, help="From a failure to training again, by a restart from a checkpoint.")
@click.option(
    "--constant",
    "constants",
    type=Parsed("name=value", _constant),
    multiple=True,
    help="Another constant of the models; the page lists them.",
)
@click.option("--gpus-per-server", type=Count(1, 1024), help="Count GPU-hours.")
@click.option("--price", metavar="MONEY/gpuh", help="Of an hour of a GPU, or of a server as 20/serverh.")
@click.option("--seeds", type=Count(1, 100), default=3, show_default=True, help="Samples of the failures.")
@click.option("-o", "--output", type=OutputFolder(), help="Folder for the page and CSV.")
@json_option
@click.option(
    "--sweep",
    "axes",
    metavar="AXIS=N[,N...] ...",
    help="A map over mtbf-of-server (as 240d), servers and micro-batches instead of one comparison.",
)
def command(
    job: Job,
    trace: str | None,
    servers: int | None,
    mtbf_of_job: float | None,
    repair: float | None,
    policies: str,
    iteration: float | None,
    layers: int | None,
    checkpoint_interval: float | None,
    checkpoint_cost: float | None,
    restart: float | None,
    constants: tuple[tuple[str, float], ...],
    gpus_per_server: int | None,
    price: str | None,
    seeds: int,
    output: Path | None,
    as_json: bool,
    axes: str | None,
) -> None:
    """Replay failures over JOB with different ways of surviving, and say what training, GPU-hours and money are lost.

    \b
    recycle study job.toml --trace language-model-cluster --policy recycle,oobleck,checkpoints -o out/
    recycle study job.toml --mtbf-of-job 7.5h --repair 4h --gpus-per-server 8 --price 2.5/gpuh -o out/
    recycle study job.toml --sweep "servers=100,1000 micro-batches=6,64" -o out/
    """
    from recycle.study.answer import Bill, answer
    from recycle.study.compare import StudySetting, iteration_seconds
    from recycle.study.constants import constant_sets
    from recycle.study.rates import Ground
    from recycle.study.registry import ALL, parse_policies

    if axes is not None:
        refuse_unread("--sweep", "--gpus-per-server", "--price")
    named = {"checkpoint-interval": checkpoint_interval, "checkpoint-cost": checkpoint_cost, "restart": restart}
    given = {name: value for name, value in named.items() if value is not None} | dict(constants)
    if twice := [name for name, value in named.items() if value is not None and name in dict(constants)]:
        raise UserError(f"--{twice[0]}: --constant {twice[0]}=... sets it too; leave one of them out")
    if repeated := [name for name, count in Counter(name for name, _ in constants).items() if count > 1]:
        raise UserError(f"--constant {repeated[0]}: it is given twice; leave one of them out")
    constant_sets(given)
    bill = Bill.parse(gpus_per_server, price)
    names = parse_policies(policies) if policies else ALL
    job.require_standard("a study")
    if output is not None and axes is None:
        _require_plots()
    if output is not None:
        from recycle.files import require_writable
        from recycle.study.tables import TABLES

        for name in (PAGE, *TABLES) if axes is None else (MAP,):
            require_writable(output / name)
    with progress_line("reading failures"):
        history = _history(job, trace, servers, mtbf_of_job, repair)
    ground = Ground(
        job,
        iteration_seconds(job) if iteration is None else iteration,
        layers or 8 * job.depth,
        history.failures_per_second(job.pipelines * job.depth),
    )
    setting = StudySetting(ground, history, names, seeds, given)
    if axes is not None:
        _sweep(setting, axes, output, as_json)
        return
    with progress_line("sampling failures") as show:
        found = answer(setting, bill, show)
    if output is not None:
        _write(output, found)
    if as_json:
        print_json(found.as_json())
        return
    _print(found)
    if output is not None:
        make_console().print(f"written to {output / 'index.html'}")
    sys.exit(0)


def _history(
    job: Job, trace: str | None, servers: int | None, mtbf_of_job: float | None, repair: float | None
) -> "FailureHistory":
    from recycle.faults.outages import load_outages
    from recycle.study.failures import FailureHistory

    if mtbf_of_job is None:
        if repair is not None:
            raise UserError("--repair: a trace has its own repairs; give --mtbf-of-job too, or leave it out")
        return FailureHistory.recorded(load_outages(trace or SHIPPED, job, servers=servers))
    refuse_unread("--mtbf-of-job", "--trace", "--servers")
    if repair is None:
        raise UserError("--mtbf-of-job: give --repair too, the mean time until a server is back, such as 4h")
    return FailureHistory.random(mtbf_of_job, job.pipelines * job.depth, repair)


def _print(found: "StudyAnswer") -> None:
    setting = found.setting
    history = setting.history
    said = "".join(
        f"; {plural(count, 'failure')} {what} counted as none" for what, count in history.uncounted.items() if count
    )
    console = make_console()
    console.print(
        f"{describe_job(setting.ground.job)}, {setting.ground.iteration:g} s an iteration; {history.name}: "
        f"{history.seconds / 86_400:.4g} days, servers failed {plural(found.policies[0].failures, 'time')} in the mean "
        f"of {plural(setting.seeds, 'sample')}{said}",
        style="bold",
    )
    _print_columns(found.policy_table())
    console.print("goodput: useful training per server-hour paid for, over that of the job without failures\n")
    _print_columns(found.choice_table())
    console.print(f"\n{found.sentence}", style="bold")


def _sweep(setting: "StudySetting", text: str, output: Path | None, as_json: bool) -> None:
    from recycle.files import write_whole
    from recycle.study.registry import OWN
    from recycle.study.sweep import parse_axes, sweep, sweep_table

    with progress_line("map") as show:
        cells = sweep(setting, parse_axes(text), show)
    if output is not None:
        _make_folder(output)
        write_whole(output / MAP, sweep_table(cells))
    if as_json:
        print_json(cells)
        return
    own = [name for name in setting.policies if name in OWN]
    rows = [
        [
            "*mtbf of a server",
            "*servers",
            "*micro-batches",
            *(f"*{name}" for name in own),
            "best rival",
            "*",
            "not ahead of, with their best constants",
        ]
    ]
    for cell in cells:
        behind = [
            f"{name}: {', '.join(cell.loses(name))}" for name in own if name != "fault-scaled" and cell.loses(name)
        ]
        rows.append(
            [
                f"{cell.mtbf / 86_400:g} d" if cell.mtbf else "trace",
                str(cell.servers),
                str(cell.micro_batches),
                *(cell.text(name) for name in own),
                cell.rival,
                cell.text(cell.rival) if cell.rival else "",
                "; ".join(behind),
            ]
        )
    _print_columns(rows)
    if output is not None:
        make_console().print(f"written to {output / 'sweep.csv'}")


def _require_plots() -> None:
    """The page is drawn last, and what is missing for it is said first."""
    if find_spec("matplotlib") is None:
        from recycle.study.plots import MISSING

        raise UserError(MISSING)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror}") from error


def _print_columns(rows: "Sequence[Sequence[str]]") -> None:
    """A table as wide as it is; its header has a star at columns of numbers, which are to the right."""
    header, *_ = rows
    shown = [[cell.lstrip("*") for cell in header], *rows[1:]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    console = make_console()
    for number, row in enumerate(shown):
        cells = (
            cell.rjust(width) if name.startswith("*") else cell.ljust(width)
            for name, cell, width in zip(header, row, widths, strict=True)
        )
        console.print("  ".join(cells).rstrip(), style=None if number else "bold")


def _write(folder: Path, found: "StudyAnswer") -> None:
    from recycle.files import write_whole
    from recycle.study.compare import throughput_curves
    from recycle.study.page import page
    from recycle.study.tables import write_tables

    with progress_line("throughput") as show:
        curves = throughput_curves(found.setting)
        show("plots")
        drawn = page(found, curves).encode()
    # What takes long is done by now: Ctrl-C leaves no page beside tables of another study.
    _make_folder(folder)
    write_tables(folder, found, curves)
    write_whole(folder / PAGE, drawn)
