"""``recycle lower``."""

from pathlib import Path

import click

from recycle.cli.console import report_console
from recycle.cli.options import load_legal_plan, plan_argument
from recycle.cli.parameters import OutputFile
from recycle.errors import UserError
from recycle.plan.document import save_plan


@click.command("lower")
@plan_argument
@click.option("-o", "--output", type=OutputFile(".json"), required=True, help="Where to write the lowered plan.")
def command(plan_file: Path, output: Path) -> None:
    """Add transfers, reductions and optimizer steps to PLAN, a legal plan of compute form.

    \b
    recycle plan job.toml --form compute -o compute.json
    recycle lower compute.json -o plan.json
    """
    from recycle.planner.assemble import lower_plan

    plan = load_legal_plan(plan_file)
    if plan.form == "lowered":
        raise UserError(f"{plan_file}: this plan is lowered already")
    save_plan(lower_plan(plan), output)
    report_console(output).print(f"written to {output}", markup=False)
