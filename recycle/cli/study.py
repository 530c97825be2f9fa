"""``recycle study``."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from recycle.cli.console import make_console, print_json, progress_line
from recycle.cli.options import JobCommand, describe_job, job_options, json_option, refuse_unread
from recycle.cli.parameters import DURATION, TEXT, Count, Parsed
from recycle.errors import UserError
from recycle.job import Job
from recycle.wording import plural

if TYPE_CHECKING:
    from recycle.study.answer import StudyAnswer
    from recycle.study.failures import FailureHistory

SHIPPED = "language-model-cluster"


def _constant(text: str) -> tuple[str, float]:
    from recycle.study.constants import parse_constant

    return parse_constant(text)


@click.command("study", cls=JobCommand)
@job_options
@click.option(
    "--trace",
    type=TEXT,
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
    "--constant",
    "constants",
    type=Parsed("name=value", _constant),
    multiple=True,
    help="A constant of the models, such as restart=5m; --json lists all.",
)
@click.option("--gpus-per-server", type=Count(1, 1024), help="Count GPU-hours.")
@click.option("--price", metavar="MONEY/gpuh", help="Of an hour of a GPU, or of a server as 20/serverh.")
@click.option("--seeds", type=Count(1, 100), default=3, show_default=True, help="Samples of the failures.")
@json_option
def command(
    job: Job,
    trace: str | None,
    servers: int | None,
    mtbf_of_job: float | None,
    repair: float | None,
    policies: str,
    iteration: float | None,
    layers: int | None,
    constants: tuple[tuple[str, float], ...],
    gpus_per_server: int | None,
    price: str | None,
    seeds: int,
    as_json: bool,
) -> None:
    """Replay failures over JOB with different ways of surviving, and say what training, GPU-hours and money are lost.

    \b
    recycle study job.toml --trace language-model-cluster --policy recycle,oobleck,checkpoints
    recycle study job.toml --mtbf-of-job 7.5h --repair 4h --gpus-per-server 8 --price 2.5/gpuh
    """
    from recycle.study.answer import Bill, answer
    from recycle.study.compare import StudySetting, iteration_seconds
    from recycle.study.constants import constant_sets
    from recycle.study.rates import Ground
    from recycle.study.registry import ALL, parse_policies

    given = dict(constants)
    if repeated := [name for name, count in Counter(name for name, _ in constants).items() if count > 1]:
        raise UserError(f"--constant {repeated[0]}: it is given twice; leave one of them out")
    constant_sets(given)
    bill = Bill.parse(gpus_per_server, price)
    names = parse_policies(policies) if policies else ALL
    job.require_standard("a study")
    with progress_line("reading failures"):
        history = _history(job, trace, servers, mtbf_of_job, repair)
    ground = Ground(
        job,
        iteration_seconds(job) if iteration is None else iteration,
        layers or 8 * job.depth,
        history.failures_per_second(job.pipelines * job.depth),
    )
    setting = StudySetting(ground, history, names, seeds, given)
    with progress_line("sampling failures") as show:
        found = answer(setting, bill, show)
    if as_json:
        print_json(found.as_json())
        return
    _print(found)


def _history(
    job: Job, trace: str | None, servers: int | None, mtbf_of_job: float | None, repair: float | None
) -> "FailureHistory":
    from recycle.faults.outages import load_outages
    from recycle.study.failures import FailureHistory

    if mtbf_of_job is None:
        if repair is not None:
            raise UserError("--repair: a trace has its own repairs; give --mtbf-of-job too, or leave it out")
        return FailureHistory.recorded(load_outages(SHIPPED if trace is None else trace, job, servers=servers))
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
