"""``recycle diff``."""

import sys
from pathlib import Path

import click

from recycle.cli.console import make_console, print_json
from recycle.cli.options import json_option
from recycle.plan.difference import compare_plans
from recycle.plan.document import load_plan


@click.command("diff")
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@json_option
def command(first: Path, second: Path, as_json: bool) -> None:
    """Compare plans A and B: what they were made for, their figures, and each server's instructions.

    Exit status 0 if they are equal, 1 if they differ, 2 if one cannot be read.
    """
    difference = compare_plans(load_plan(first), load_plan(second))
    if as_json:
        print_json(
            {
                "equal": not difference,
                "fields": {name: {"a": before, "b": after} for name, before, after in difference.fields},
                "programs": {str(server): lines for server, lines in difference.programs.items()},
            }
        )
    else:
        console = make_console()
        for name, before, after in difference.fields:
            console.print(f"{name}: {before} -> {after}", markup=False)
        for server, lines in difference.programs.items():
            console.print(str(server), style="bold")
            for line in lines:
                style = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
                console.print(f"  {line}", style=style, markup=False)
        if not difference:
            console.print("The plans are equal.")
    sys.exit(1 if difference else 0)
