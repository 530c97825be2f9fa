"""``recycle export``."""

from pathlib import Path

import click

from recycle.cli.console import is_read_by_eye, make_console, report_console
from recycle.cli.options import load_legal_plan, plan_argument
from recycle.cli.parameters import OutputFile
from recycle.files import STANDARD, write_whole
from recycle.plan.export import export_csv, export_torch

SHOWN = 10
"""Lines that a terminal is given."""


@click.command("export")
@plan_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "torch"]),
    default="csv",
    show_default=True,
    help="csv: timed compute instructions; torch: a schedule for torch.distributed.pipelining.",
)
@click.option("--pipeline", type=int, default=0, show_default=True, help="Which pipeline a torch schedule is made of.")
@click.option("-o", "--output", type=OutputFile(".csv"), help="Where to write; default: standard output.")
def command(plan_file: Path, form: str, pipeline: int, output: Path | None) -> None:
    """Write PLAN in a form that other programs read.

    csv has a row per compute instruction, and per reduction beside others: server, chunk, op, home, micro_batch, start,
    end. torch has a row per rank, for _PipelineScheduleRuntime of torch.distributed.pipelining; it exists for plans
    without re-routing.
    """
    plan = load_legal_plan(plan_file)
    text = export_csv(plan) if form == "csv" else export_torch(plan, pipeline)
    if output is None and is_read_by_eye():
        rows = text.splitlines()
        console = make_console()
        for row in rows[:SHOWN]:
            console.print(row, markup=False)
        if len(rows) > SHOWN:
            console.print(f"... {len(rows):,} lines in all: give -o FILE.csv, or -o - for all of them here")
        return
    write_whole(output or STANDARD, text.encode())
    if output is not None:
        report_console(output).print(f"written to {output}", markup=False)
