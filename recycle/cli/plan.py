"""``recycle plan``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recycle.cli.console import print_json, progress_line, report_console
from recycle.cli.options import (
    JobCommand,
    dead_option,
    describe_dead,
    describe_job,
    describe_throughput,
    form_option,
    job_options,
    json_option,
    mode_options,
    search_options,
)
from recycle.cli.parameters import DURATION, OutputFile
from recycle.job import Job, Server
from recycle.plan.document import save_plan
from recycle.plan.mode import Mode
from recycle.plan.plan import Form, Plan

if TYPE_CHECKING:
    from recycle.planner.model.stopping import StoppingCriterion


@click.command("plan", cls=JobCommand)
@job_options
@dead_option
@mode_options
@search_options
@click.option(
    "--prove",
    type=DURATION,
    help="Time for the exact solver to prove or improve the plan.",
)
@form_option
@click.option("-o", "--output", type=OutputFile(".json"), help="Where to write the plan.")
@json_option
def command(
    job: Job,
    dead: tuple[Server, ...],
    mode: Mode,
    stop: "StoppingCriterion",
    budget: str,
    seed: int,
    prove: float | None,
    form: Form,
    output: Path | None,
    as_json: bool,
) -> None:
    """Plan JOB around its dead servers, and prove how good the plan is.

    JOB is a TOML file (docs/reference/job-file.md lists every key); flags describe a job without one, or change what
    it says. The search ends at its budget, at the proven bound, or at Ctrl-C; the best plan found is kept each time.

    \b
    recycle plan job.toml --dead W1_2 --budget 2s -o plan.json
    recycle plan -D 3 -P 4 -M 6 --optimizer-cost 3 --limit 6 --dead W1_0,W2_3 --prove 60s
    """
    from recycle.planner.make import Effort, make_plan

    if prove:
        budget += f", {prove:g} s for a proof"
    with progress_line("planning") as show:

        def watch(period: int, bound: int) -> None:
            show(f"period {job.time_text(period)}, bound {job.time_text(bound)}, gap {period / max(bound, 1) - 1:.1%}")

        plan = make_plan(
            job, dead, mode, Effort((stop,), budget, seed, prove or 0.0, until_interrupted=True), form, watch
        )
    if output is not None:
        save_plan(plan, output)
    if as_json:
        print_json(summary(plan))
        return
    report(plan, output)


def summary(plan: Plan) -> dict[str, Any]:
    """What one judges a plan by."""
    return {
        "dead": [str(server) for server in plan.dead],
        "period": plan.period,
        "makespan": plan.makespan,
        "bound": plan.bound,
        "gap": plan.gap,
        "status": plan.provenance.status,
        "bound_by": plan.provenance.bound_by,
        "baseline": plan.baseline,
        "retention": plan.retention,
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
    console.print(describe_job(job), markup=False)
    console.print(f"dead       {describe_dead(plan.dead)}")
    console.print(
        f"mode       {plan.mode.backward} backward, {plan.mode.optimizer} optimizer, {plan.mode.routing} routing"
    )
    console.print(f"period     {job.time_text(plan.period)} ({proved})")
    console.print(f"bound      {job.time_text(plan.bound)}, by {plan.provenance.bound_by}")
    console.print(f"makespan   {job.time_text(plan.makespan)}")
    for heading, text in zip(("throughput", ""), describe_throughput(plan), strict=False):
        console.print(f"{heading:10} {text}")
    if output is not None:
        console.print(f"written to {output}", markup=False)
    else:
        console.print("Nothing is written: give -o plan.json to keep the plan.")
