"""``recycle lower``."""

from pathlib import Path

import click

from recycle.cli.console import report_console
from recycle.cli.options import copied_option, load_legal_plan, plan_argument
from recycle.cli.parameters import OutputFile
from recycle.errors import UserError
from recycle.plan.document import save_plan
from recycle.plan.plan import Copies


@click.command("lower")
@plan_argument
@copied_option
@click.option("-o", "--output", type=OutputFile(".json"), required=True, help="Where to write the lowered plan.")
def command(plan_file: Path, copied: Copies | None, output: Path) -> None:
    """Add transfers, reductions and optimizer steps to PLAN, a legal plan of compute form.

    With --copied, copies of the state as well: in bubbles and on idle links as far as there is room.

    \b
    recycle plan job.toml --form compute -o compute.json
    recycle lower compute.json -o plan.json
    """
    from recycle.planner.assemble import lower_plan
    from recycle.planner.copying import add_copies

    plan = load_legal_plan(plan_file)
    if plan.form == "lowered":
        raise UserError(f"{plan_file}: this plan is lowered already")
    lowered = lower_plan(plan)
    if copied is not None:
        lowered = add_copies(lowered, copied)
    save_plan(lowered, output)
    report_console(output).print(f"written to {output}", markup=False)
