"""``recycle explain``."""

from pathlib import Path

import click
import msgspec

from recycle.cli.console import make_console, print_json, progress_line
from recycle.cli.options import (
    Verb,
    describe_dead,
    describe_job,
    json_option,
    load_legal_plan,
    plan_argument,
    refuse_unread,
)
from recycle.cli.parameters import TIME, Count
from recycle.placing.decision import OF_A_CLUSTER, Outlook
from recycle.planner.explain import explain
from recycle.planner.moving import weigh_move
from recycle.study.compare import iteration_seconds


@click.command("explain", cls=Verb)
@plan_argument
@click.option("--layers", type=Count(1), help="Of the model, where they may move.  [default: 8 per stage]")
@click.option("--mtbf", type=TIME, help="Mean time between the failures of a server.  [default: 238 days]")
@click.option("--mttr", type=TIME, help="Mean time to its repair.  [default: 5.5 days]")
@json_option
def command(plan_file: Path, layers: int | None, mtbf: float | None, mttr: float | None, as_json: bool) -> None:
    """Explain what bounds PLAN's period, what its failures cost and why, and what would help.

    What would help is judged by bounds: "at best" is a period that no plan can go below after the change. Whether
    layers should move to other servers is decided by what that gains until servers are expected to change again; runs
    move them with recycle train --move-layers on.
    """
    outlook = Outlook(mtbf or OF_A_CLUSTER.between_failures, mttr or OF_A_CLUSTER.to_repair)
    with progress_line("explaining"):
        plan = load_legal_plan(plan_file)
        explanation = explain(plan)
        weighed = weigh_move(plan, layers or 8 * plan.job.depth, iteration_seconds(plan.job), outlook)
    if weighed is None:
        refuse_unread("a plan whose layers cannot move", "--layers", "--mtbf", "--mttr")
    if as_json:
        placement = None if weighed is None else weighed[0]
        print_json({**msgspec.structs.asdict(explanation), "placement": placement})
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
    if weighed is not None:
        decision, told = weighed
        console.print(f"Placement: {decision.line}.")
        for story in told if decision.moves else ():
            console.print(f"  {story}")
