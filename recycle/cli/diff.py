"""``recycle diff``."""

import sys
from pathlib import Path
from typing import Any

import click

from recycle.cli.console import is_read_by_eye, make_console, print_json
from recycle.cli.options import json_option
from recycle.job import Job
from recycle.plan.difference import compare_plans
from recycle.plan.document import load_plan

SHOWN = 60
"""Lines of instructions that a terminal is given."""

TIMES = {"makespan", "period", "bound", "baseline", "delay"} | {
    *("forward", "input_gradient", "weight_gradient", "optimizer", "reduction", "latency")
}
AMOUNTS = {"held", "released_at_input_gradient", "limit", "state"}


@click.command("diff")
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@json_option
def command(first: Path, second: Path, as_json: bool) -> None:
    """Compare plans A and B: what they were made for, their figures, and each server's instructions.

    Of many instructions that differ, a terminal is given their numbers. Exit status 0 if they are equal, 1 if they
    differ, 2 if one cannot be read.
    """
    before, after = load_plan(first), load_plan(second)
    difference = compare_plans(before, after)
    if as_json:
        print_json(
            {
                "equal": not difference,
                "fields": {name: {"a": old, "b": new} for name, old, new in difference.fields},
                "programs": {str(server): lines for server, lines in difference.programs.items()},
            }
        )
        sys.exit(1 if difference else 0)
    console = make_console()
    for name, old, new in difference.fields:
        console.print(
            f"{name}: {value_text(name, old, before.job)} -> {value_text(name, new, after.job)}", markup=False
        )
    count = sum(map(len, difference.programs.values()))
    brief = is_read_by_eye() and count > SHOWN
    for server, lines in difference.programs.items():
        if brief:
            less, more = (sum(line.startswith(sign) for line in lines) for sign in "-+")
            console.print(f"{server}: {less} instructions in other places or gone, {more} new or come there")
            continue
        console.print(str(server), style="bold")
        for line in lines:
            style = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
            console.print(f"  {line}", style=style, markup=False)
    if brief:
        console.print(f"recycle diff {first} {second} | less shows them, in {count} lines", markup=False)
    if not difference:
        console.print("The plans are equal.")
    sys.exit(1 if difference else 0)


def value_text(name: str, value: Any, job: Job) -> str:
    """A value of a plan's with its unit."""
    field = name.rpartition(".")[2]
    if isinstance(value, int) and field in TIMES:
        return job.time_text(value)
    if isinstance(value, int) and field in AMOUNTS:
        return job.memory_text(value)
    if isinstance(value, list | tuple):
        return ", ".join(value_text(name, each, job) for each in value) or "none"
    return "none" if value is None else str(value)
