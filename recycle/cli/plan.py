"""``recycle plan``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recycle.cli.console import print_json, progress_line, report_console
from recycle.cli.options import (
    SEARCH,
    Described,
    JobCommand,
    describe_dead,
    describe_job,
    describe_throughput,
    described_job,
    json_option,
    mode_options,
    refuse_unread,
    search_options,
)
from recycle.cli.parameters import DURATION, SERVERS, InputPath, OutputFile
from recycle.files import STANDARD
from recycle.job import Server
from recycle.plan.catalogue import Catalogue
from recycle.plan.document import save_plan
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan

if TYPE_CHECKING:
    from recycle.planner.model.stopping import StoppingCriterion


@click.command("plan", cls=JobCommand)
@described_job
@click.option("--dead", type=SERVERS, default="", help="The dead servers, for example W1_2,W0_3.")
@mode_options
@search_options
@click.option(
    "--prove",
    type=DURATION,
    help="Time for the exact solver to prove or improve the plan.",
)
@click.option(
    "--catalogue",
    type=InputPath(),
    help="Take the plan for the dead servers from a catalogue, in their names; JOB refuses one of another job.",
)
@click.option("-o", "--output", type=OutputFile(".json"), help="Where to write the plan.")
@json_option
def command(
    described: Described,
    dead: tuple[Server, ...],
    mode: Mode,
    stop: "StoppingCriterion",
    budget: str,
    seed: int,
    prove: float | None,
    catalogue: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Plan JOB around its dead servers, and prove how good the plan is.

    JOB is a TOML file (docs/reference/job-file.md lists every key); flags describe a job without one, or change what
    it says. The search ends at its budget, at the proven bound, or at Ctrl-C; the best plan found is kept each time.
    For a job of more than 20,000 tasks (pipelines x stages x micro-batches x 3), Ctrl-C leaves no plan.

    With --catalogue nothing is searched for; where a live server has to act as a dead peer, the report says so.

    \b
    recycle plan job.toml --dead W1_2 --budget 2s -o plan.json
    recycle plan -D 3 -P 4 -M 6 --dead W1_0,W2_3 --prove 60s
    recycle plan --catalogue catalogue.zip --dead W1_2,W0_3 -o plan.json
    """
    from recycle.planner.make import Effort, make_plan

    if output == STANDARD:
        refuse_unread("-o -", "--json")
    if catalogue is not None:
        refuse_unread("--catalogue", *SEARCH)
        plans = Catalogue(catalogue, described.load() if any(described) else None)
        finish(plans.look_up(dead).plan(), output, as_json=as_json)
        return
    job = described.load()
    if prove:
        budget += f", {prove:g} s for a proof"
    with progress_line("planning") as show:

        def watch(period: int, bound: int) -> None:
            show(f"period {job.time_text(period)}, bound {job.time_text(bound)}, gap {period / max(bound, 1) - 1:.1%}")

        effort = Effort((stop,), budget, seed, prove or 0.0, until_interrupted=True)
        plan = make_plan(job, dead, mode, effort, watch=watch)
    finish(plan, output, as_json=as_json)


def finish(plan: Plan, output: Path | None, *, as_json: bool) -> None:
    """Write a plan, if that is wanted, and report what it is worth."""
    if output is not None:
        save_plan(plan, output)
    if as_json:
        print_json(summary(plan))
    else:
        report(plan, output)


def summary(plan: Plan) -> dict[str, Any]:
    """What one judges a plan by."""
    from recycle.planner.assemble import unlimited_baseline

    return {
        "dead": [str(server) for server in plan.dead],
        "roles": {str(server): str(role) for server, role in plan.roles.items()},
        "period": plan.period,
        "makespan": plan.makespan,
        "bound": plan.bound,
        "gap": plan.gap,
        "status": plan.provenance.status,
        "bound_by": plan.provenance.bound_by,
        "baseline": plan.baseline,
        "unlimited_baseline": unlimited_baseline(plan.job),
        "throughput": plan.throughput,
    }


def report(plan: Plan, output: Path | None) -> None:
    """Say in a few lines what a plan is worth."""
    console = report_console(output)
    job = plan.job
    proved = (
        "optimal: equal to the bound"
        if plan.provenance.status == "optimal"
        else f"at most {plan.gap:.2%} above optimal"
    )
    console.print(describe_job(job))
    console.print(f"dead       {describe_dead(plan.dead)}")
    for server, role in plan.roles.items():
        console.print(f"role       {server} acts as {role}")
    console.print(
        f"mode       {plan.mode.backward} backward, {plan.mode.optimizer} optimizer, {plan.mode.routing} routing"
    )
    console.print(f"period     {job.time_text(plan.period)} ({proved})")
    console.print(f"bound      {job.time_text(plan.bound)}, by {plan.provenance.bound_by}")
    console.print(f"makespan   {job.time_text(plan.makespan)}")
    for heading, text in zip(("throughput", ""), describe_throughput(plan), strict=False):
        console.print(f"{heading:10} {text}")
    if output is not None:
        console.print(f"written to {output}")
    else:
        console.print("Nothing is written: give -o plan.json to keep the plan.")
