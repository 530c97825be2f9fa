"""``recycle lower``."""

from pathlib import Path

import click
import msgspec

from recycle.cli.console import make_console
from recycle.cli.options import load_legal_plan, plan_argument
from recycle.errors import UserError
from recycle.plan.clock import run_clock
from recycle.plan.document import save_plan


@click.command("lower")
@plan_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Where to write the lowered plan.")
def command(plan_file: Path, output: Path) -> None:
    """Add transfers, reductions and optimizer steps to PLAN, a legal plan of compute form.

    \b
    recycle plan job.toml --form compute -o compute.json
    recycle lower compute.json -o plan.json
    """
    from recycle.planner.lowering import lower

    plan = load_legal_plan(plan_file)
    if plan.form == "lowered":
        raise UserError(f"{plan_file}: this plan is lowered already")
    programs = lower(plan.job, plan.mode, plan.programs)
    clock = run_clock(plan.job, plan.mode, programs)
    lowered = msgspec.structs.replace(
        plan,
        form="lowered",
        makespan=clock.makespan,
        period=clock.period,
        programs={server: tuple(program) for server, program in programs.items()},
    )
    save_plan(lowered, output)
    make_console().print(f"written to {output}", markup=False)
