"""Ways out: a plan as timed rows, and as a schedule that torch.distributed.pipelining runs."""

from recycle.errors import UserError
from recycle.files import csv_text
from recycle.plan.clock import run_clock
from recycle.plan.instruction import Op
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


def export_torch(plan: Plan, pipeline: int = 0) -> str:
    """One pipeline's compute instructions as torch.distributed.pipelining reads them: a row per rank, no header.

    torch writes ``2F0`` for stage 2, forward, micro-batch 0; I and W are its input and weight gradient and B its full
    backward. torch knows one pipeline only, and adds the transfers itself.

    Raises:
        UserError: the plan re-routes micro-batches, or has no such pipeline.
    """
    if not 0 <= pipeline < plan.job.pipelines:
        raise UserError(f"pipeline {pipeline}: this plan has pipelines 0 to {plan.job.pipelines - 1}")
    for server, program in plan.programs.items():
        for instruction in program:
            if instruction.op is Op.F and instruction.home != plan.job.pipeline_of(server):
                raise UserError(
                    f"{server} executes {instruction}, which is re-routed from pipeline {instruction.home}: "
                    "torch.distributed.pipelining cannot express that; export a plan without failures"
                )
    return csv_text(
        [f"{each.stage}{each.op.value}{each.micro_batch}" for each in program if each.op.is_compute]
        for server, program in sorted(plan.programs.items())
        if plan.job.pipeline_of(server) == pipeline
    )
