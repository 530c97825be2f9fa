"""``recycle explain``."""

from pathlib import Path

import click
import msgspec

from recycle.cli.console import make_console, print_json
from recycle.cli.options import copied_option, describe_dead, describe_job, json_option, load_legal_plan, plan_argument
from recycle.cli.parameters import DURATION, Count
from recycle.errors import UserError
from recycle.placing.decision import OF_A_CLUSTER, Outlook
from recycle.plan.plan import Copies, Plan
from recycle.planner.assemble import lower_plan
from recycle.planner.copying import add_copies
from recycle.planner.explain import explain
from recycle.planner.moving import weigh_move
from recycle.study.compare import iteration_seconds
from recycle.wording import plural


@click.command("explain")
@plan_argument
@click.option("--layers", type=Count(1), help="Of the model, where they may move.  [default: 8 per stage]")
@click.option("--mtbf", type=DURATION, help="Mean time between the failures of a server.  [default: 238 days]")
@click.option("--mttr", type=DURATION, help="Mean time to its repair.  [default: 5.5 days]")
@copied_option
@json_option
def command(
    plan_file: Path, layers: int | None, mtbf: float | None, mttr: float | None, copied: Copies | None, as_json: bool
) -> None:
    """Explain what bounds PLAN's period, what its failures cost and why, and what would help.

    What would help is judged by bounds: "at best" is a period that no plan can go below after the change. Whether
    layers should move to other servers is decided by what that gains until servers are expected to change again; runs
    move them with recycle train --move-layers on.
    """
    plan = load_legal_plan(plan_file)
    explanation = explain(plan)
    outlook = Outlook(mtbf or OF_A_CLUSTER.between_failures, mttr or OF_A_CLUSTER.to_repair)
    weighed = weigh_move(plan, layers or 8 * plan.job.depth, iteration_seconds(plan.job), outlook)
    copies = say_copies(plan, copied)
    if as_json:
        placement = None if weighed is None else weighed[0]
        print_json({**msgspec.structs.asdict(explanation), "placement": placement, "copies": copies})
        return
    console = make_console()
    console.print(f"{describe_job(plan.job)}; dead: {describe_dead(plan.dead)}", style="bold", markup=False)
    for text in (explanation.time, explanation.bound, *explanation.cost):
        console.print(text, markup=False)
    for remedy in explanation.remedies:
        at_best = plan.job.time_text(remedy.at_best)
        console.print(f"Would help: {remedy.change}; at best {at_best}.", markup=False)
    if not explanation.remedies:
        console.print("Nothing that the bounds know of would help.")
    if copies is not None:
        console.print(copies, markup=False)
    if weighed is not None:
        decision, transition = weighed
        console.print(f"Placement: {decision.line}.", markup=False)
        for story in transition.stories if decision.moves else ():
            console.print(f"  {story}", markup=False)


def say_copies(plan: Plan, wanted: Copies | None) -> str | None:
    """What copies of the state do to the period, in a line; None where there are none.

    Args:
        plan: a legal one.
        wanted: what is to be copied besides; None for nothing.

    Raises:
        JobError: servers hold several chunks, or pipelines differ.
        StateError: only one server is alive.
        UserError: the plan copies already.
    """
    if wanted is not None:
        if plan.copies is not None:
            raise UserError("--copied: this plan copies the state already; leave it out to see what that costs")
        plan = add_copies(plan if plan.form == "lowered" else lower_plan(plan), wanted)
    if plan.copies is None:
        return None
    what = f"Copies of the state on another host, {plural(plan.copies.pieces, 'piece')} of each server's part"
    period = plan.job.time_text(plan.period)
    if not plan.copies.delay:
        return f"{what}: bubbles and idle links have room, the period stays {period}."
    return f"{what}: there is not room for all; the period is {period}, {plan.job.time_text(plan.copies.delay)} longer."
