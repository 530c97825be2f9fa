"""A plan as timed rows, for other programs."""

from typing import NamedTuple

from recycle.files import csv_text
from recycle.plan.clock import run_clock
from recycle.plan.instruction import Op
from recycle.plan.plan import Plan

COLUMNS = ("server", "chunk", "op", "home", "micro_batch", "start", "end")


class _Row(NamedTuple):
    chunk: int
    op: Op
    home: int | str
    micro_batch: int | str
    start: int
    end: int


def export_csv(plan: Plan) -> str:
    """Every compute instruction of a legal plan with its times, a row each; the first row names the columns.

    Reductions that go on beside them have rows without home and micro-batch, one for each server that takes part. With
    all these alone, the costs and the placement one can judge a plan. A chunk is the stage where each server holds one.
    """
    clock = run_clock(plan.job, plan.mode, plan.programs)
    first = min((start[0] for start in clock.start.values() if start), default=0)
    table: list[tuple[object, ...]] = [COLUMNS]
    for server in sorted(clock.compute):
        computed = zip(clock.compute[server], clock.start[server], clock.end[server], strict=True)
        rows = [_Row(each.stage, each.op, each.home, each.micro_batch, start, end) for each, start, end in computed]
        held = {update.chunk for update in clock.updates[server]}
        reduced = [(chunk, each) for chunk, each in clock.reductions.items() if chunk in held]
        rows += [_Row(chunk, Op.REDUCE, "", "", each.start, each.end) for chunk, each in reduced]
        for row in sorted(rows, key=lambda row: row.start):
            names = row.chunk, row.op.value, row.home, row.micro_batch
            table.append((server, *names, row.start - first, row.end - first))
    return csv_text(table)
