"""``recycle explain``."""

from pathlib import Path

import click

from recycle.cli.console import make_console, print_json, progress_line
from recycle.cli.options import Verb, describe_dead, describe_job, json_option, load_legal_plan, plan_argument
from recycle.planner.explain import explain


@click.command("explain", cls=Verb)
@plan_argument
@json_option
def command(plan_file: Path, as_json: bool) -> None:
    """Explain what bounds PLAN's period, what its failures cost and why, and what would help.

    What would help is judged by bounds: "at best" is a period that no plan can go below after the change.
    """
    with progress_line("explaining"):
        plan = load_legal_plan(plan_file)
        explanation = explain(plan)
    if as_json:
        print_json(explanation)
        return
    console = make_console()
    console.print(f"{describe_job(plan.job)}; dead: {describe_dead(plan.dead)}", style="bold")
    for text in (explanation.time, explanation.bound, *explanation.cost):
        console.print(text)
    for remedy in explanation.remedies:
        at_best = plan.job.time_text(remedy.at_best)
        console.print(f"Would help: {remedy.change}; at best {at_best}.")
    if not explanation.remedies:
        console.print("Nothing that the bounds know of would help.")
