"""``recycle explain``."""

from pathlib import Path

import click
import msgspec

from recycle.cli.console import make_console, print_json
from recycle.cli.options import describe_dead, describe_job, json_option, load_legal_plan, plan_argument
from recycle.cli.parameters import DURATION, Count
from recycle.placing.decision import OF_A_CLUSTER, Outlook
from recycle.plan.plan import Plan
from recycle.planner.assemble import lower_plan
from recycle.planner.explain import explain
from recycle.planner.moving import weigh_move
from recycle.state.placement import place_copies
from recycle.state.traffic import Traffic, check_copies, plan_copies
from recycle.study.compare import iteration_seconds
from recycle.wording import plural


@click.command("explain")
@plan_argument
@click.option("--layers", type=Count(1), help="Of the model, where they may move.  [default: 8 per stage]")
@click.option("--mtbf", type=DURATION, help="Mean time between the failures of a server.  [default: 238 days]")
@click.option("--mttr", type=DURATION, help="Mean time to its repair.  [default: 5.5 days]")
@click.option(
    "--copied",
    type=Count(1),
    help="Find room for copies of the state on other hosts: so many pieces of each server's part, each a unit of time "
    "to host memory and over a link.",
)
@json_option
def command(
    plan_file: Path, layers: int | None, mtbf: float | None, mttr: float | None, copied: int | None, as_json: bool
) -> None:
    """Explain what bounds PLAN's period, what its failures cost and why, and what would help.

    What would help is judged by bounds: "at best" is a period that no plan can go below after the change. Whether
    layers should move to other servers is decided by what that gains until servers are expected to change again.
    """
    plan = load_legal_plan(plan_file)
    explanation = explain(plan)
    outlook = Outlook(mtbf or OF_A_CLUSTER.between_failures, mttr or OF_A_CLUSTER.to_repair)
    weighed = weigh_move(plan, layers or 8 * plan.job.depth, iteration_seconds(plan.job), outlook)
    copies = None if copied is None else say_copies(plan, copied)
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
        console.print(f"Placement (plans only, runs move no layers): {decision.line}.", markup=False)
        for story in transition.stories if decision.moves else ():
            console.print(f"  {story}", markup=False)


def say_copies(plan: Plan, pieces: int) -> str:
    """What copies of the state on another host each do to the period, in a line.

    Args:
        plan: a legal one.
        pieces: into how many a server's part is cut; each takes a unit of time to host memory, and over a link.

    Raises:
        StateError: only one server is alive.
    """
    lowered = plan if plan.form == "lowered" else lower_plan(plan)
    servers = sorted(lowered.programs)
    placed = place_copies([str(each) for each in servers], 2)
    holders = {each: [servers[place] for place in hosts[1:]] for each, hosts in zip(servers, placed, strict=True)}
    traffic = Traffic(pieces, 1, 1, holders)
    copies = plan_copies(lowered, traffic)
    problems = check_copies(lowered, traffic, copies)
    assert not problems, problems
    what = f"Copies of the state on another host, {plural(pieces, 'piece')} of each server's part"
    if not copies.paused:
        return f"{what}: bubbles and idle links have room, the period stays {plan.job.time_text(plan.period)}."
    period = plan.job.time_text(plan.period + copies.pause)
    return (
        f"{what}: {plural(len(copies.paused), 'transfer')} found no room; with a pause for them the period is {period}."
    )
