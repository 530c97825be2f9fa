"""``recycle check``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recycle.cli.console import make_console, print_json, progress_line
from recycle.cli.options import Verb, describe_dead, describe_job, describe_throughput, json_option, plan_argument
from recycle.cli.parameters import InputPath
from recycle.holding import placed
from recycle.job import Job
from recycle.plan.checker import check_plan, rows_around
from recycle.plan.clock import Clock, run_clock
from recycle.plan.difference import compare_plans
from recycle.plan.document import load_plan
from recycle.plan.memory import peak_memory
from recycle.plan.plan import Plan
from recycle.plan.violation import Violation

if TYPE_CHECKING:
    from recycle.planner.claims import Claims

MOST_ROWS = 64

TIMES = {"makespan", "period", "bound", "baseline"} | {
    *("forward", "input_gradient", "weight_gradient", "optimizer", "reduction", "latency")
}
AMOUNTS = {"held", "released_at_input_gradient", "taken_at_input_gradient", "limit", "state"}


@click.command("check", cls=Verb)
@plan_argument
@click.option(
    "--against",
    type=InputPath(),
    help="Compare it with another plan instead: what they were made for, their figures, each server's instructions.",
)
@json_option
def command(plan_file: Path, against: Path | None, as_json: bool) -> None:
    """Prove that PLAN is legal, and recompute its figures from its instructions.

    In a legal plan every micro-batch passes every stage once, F before I before W on one live server. No server holds
    more than its memory limit. Every transfer has one partner, and both ends agree on the order. Nothing deadlocks,
    even if each send waits for its receive. Every stage reduces and steps once. Period and makespan are what the plan
    says.

    Baseline and status are recomputed, and the bound as far as the rules prove it. A bound that only the exact solver
    has proved is reported as not verified. Planner, seed and budget are not checked.

    An illegal plan exits with status 1 and names the first wrong instruction; a file that is no plan exits with 2.

    With --against, the exit status is 0 if the plans are equal, and 1 if they differ.
    """
    if against is not None:
        with progress_line("reading"):
            plans = load_plan(plan_file), load_plan(against)
        compare(*plans, as_json=as_json)
        return
    with progress_line("checking"):
        plan = load_plan(plan_file)
        violations = check_plan(plan)
    require(plan, violations, as_json)
    from recycle.planner.claims import judge_claims

    with progress_line("checking its figures"):
        claims = judge_claims(plan)
        clock = None if claims.violations else run_clock(plan.job, plan.mode, plan.programs)
    require(plan, claims.violations, as_json)
    assert clock is not None, "a plan without violations has times"
    if as_json:
        print_json(figures(plan, clock, claims))
    else:
        report(plan, clock, claims)


def require(plan: Plan, violations: Sequence[Violation], as_json: bool) -> None:
    """End the program with status 1, and say what is wrong, if anything is."""
    if not violations:
        return
    if as_json:
        rows = [
            {
                "rule": each.rule,
                "message": each.message,
                "server": str(each.server) if each.server else None,
                "index": each.index,
            }
            for each in violations
        ]
        print_json({"legal": False, "violations": rows})
    else:
        console = make_console()
        first = violations[0]
        place = f"{first.server}[{first.index}]: " if first.index is not None else ""
        console.print(f"ILLEGAL ({first.rule}): {place}{first.message}")
        for row in rows_around(plan, first):
            console.print(f"  {row}")
        if len(violations) > 1:
            console.print(f"and {len(violations) - 1} more of this kind; --json lists them all")
    sys.exit(1)


def figures(plan: Plan, clock: Clock, claims: "Claims") -> dict[str, Any]:
    """What was recomputed."""
    return {
        "legal": True,
        "makespan": clock.makespan,
        "period": clock.period,
        "bound": plan.bound,
        "bound_verified": claims.verified,
        "bound_proven": claims.proven,
        "baseline": plan.baseline,
        "gap": plan.gap,
        "throughput": plan.throughput,
        "peak_memory": {
            str(server): peak_memory(plan.job, server, program) for server, program in clock.compute.items()
        },
        "bubble": {str(server): round(clock.bubble(server), 6) for server in clock.compute},
    }


def report(plan: Plan, clock: Clock, claims: "Claims") -> None:
    """Print a table of every server's bubble and memory; of many servers, the extremes of each stage."""
    from rich.table import Table

    console = make_console()
    job = plan.job
    console.print(describe_job(job))
    console.print(f"LEGAL, {plan.form} form, dead: {describe_dead(plan.dead)}")
    console.print(f"period {job.time_text(clock.period)}, makespan {job.time_text(clock.makespan)}")
    console.print(f"bound {job.time_text(plan.bound)} by {plan.provenance.bound_by}, gap {plan.gap:.2%}")
    if not claims.verified:
        console.print(
            f"the bound is not verified: the rules prove {job.time_text(claims.proven)} by {claims.proof}, and "
            f"{job.time_text(plan.bound)} needs the solver's proof again: recycle plan --prove"
        )
    for text in describe_throughput(plan):
        console.print(f"throughput {text}")
    table = Table(box=None, header_style="bold")
    for heading in ("", "bubble", "peak memory", "limit"):
        table.add_column(heading, justify="right" if heading else "left")
    servers = sorted(clock.compute)
    if len(servers) <= MOST_ROWS:
        groups = [(str(server), [server]) for server in servers]
    else:
        stages = sorted({server.stage for server in servers})
        groups = [(f"stage {stage}", [server for server in servers if server.stage == stage]) for stage in stages]
    for name, members in groups:
        shares = [clock.bubble(server) for server in members]
        memory = max(peak_memory(job, server, clock.compute[server]) for server in members)
        limits = [placed(job, server).limit for server in members]
        bubble = range_text(f"{min(shares):.1%}", f"{max(shares):.1%}")
        limit = range_text(job.memory_text(min(limits)), job.memory_text(max(limits)))
        table.add_row(name, bubble, job.memory_text(memory), limit)
    console.print(table)


def range_text(least: str, greatest: str) -> str:
    """From the least to the greatest, said once where they read alike."""
    return least if least == greatest else f"{least} to {greatest}"


def compare(before: Plan, after: Plan, *, as_json: bool) -> None:
    """Say what differs between two plans, and end the program with status 1 if anything does.

    Args:
        before: one.
        after: the other one.
        as_json: whether for other programs.
    """
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
        console.print(f"{name}: {value_text(name, old, before.job)} -> {value_text(name, new, after.job)}")
    for server, lines in difference.programs.items():
        console.print(str(server), style="bold")
        for line in lines:
            style = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
            console.print(f"  {line}", style=style)
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
