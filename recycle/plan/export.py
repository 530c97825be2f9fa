"""A plan as timed rows, for other programs."""

from recycle.files import csv_text
from recycle.plan.clock import run_clock
from recycle.plan.plan import Plan

COLUMNS = ("server", "chunk", "op", "home", "micro_batch", "start", "end")


def export_csv(plan: Plan) -> str:
    """Every compute instruction of a legal plan with its times, a row each; the first row names the columns.

    With these alone, the costs and the placement one can judge a plan. A chunk is the stage if servers hold one each.
    """
    clock = run_clock(plan.job, plan.mode, plan.programs)
    first = min((start[0] for start in clock.start.values() if start), default=0)
    table: list[tuple[object, ...]] = [COLUMNS]
    for server in sorted(clock.compute):
        computed = zip(clock.compute[server], clock.start[server], clock.end[server], strict=True)
        for each, start, end in computed:
            names = each.stage, each.op.value, each.home, each.micro_batch
            table.append((server, *names, start - first, end - first))
    return csv_text(table)
