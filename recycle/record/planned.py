"""The planned time line: what the clock says about a plan, in the schema that measured runs share."""

from collections.abc import Sequence

import msgspec

from recycle.job import Job, Server
from recycle.plan.clock import COMPUTE, Clock, run_clock
from recycle.plan.instruction import Instruction, Op
from recycle.plan.memory import memory_changes, walk_memory
from recycle.plan.plan import Plan
from recycle.record.recording import InstantLine, SampleLine
from recycle.record.timeline import Span, Timeline


def timeline(plan: Plan, iterations: int = 1) -> Timeline:
    """The planned time line of a plan, unrolled over some iterations in the steady state.

    Transfers take the latency of their boundary, from the end of the instruction whose result they carry. The plan need
    not be legal: instructions of micro-batches that the job does not have are timed like any other.

    Raises:
        Deadlock: servers of the plan wait for each other.
    """
    job = plan.job
    clock = plan_clock(plan)
    first = min((start[0] for start in clock.start.values() if start), default=0)
    spans: list[Span] = []
    samples: list[SampleLine] = []
    for server in sorted(clock.compute):
        name = str(server)
        work = list(zip(_compute(plan.programs[server]), clock.start[server], clock.end[server], strict=True))
        sends = _sends(plan.programs[server])
        changes = memory_changes(job.stages[server.stage])
        places = len(plan.programs[server])
        update = _updates(plan.programs[server])
        levels = walk_memory(job.stages[server.stage], [each.op for (_, each), *_ in work] * iterations)
        lane: list[Span] = []
        for iteration in range(iterations):
            shift = iteration * clock.period - first
            for (index, instruction), start, end in work:
                lane.append(Span(server, "compute", instruction, start + shift, end + shift, iteration, index))
                during, after = next(levels)
                if changes[instruction.op].taken:
                    samples.append(SampleLine(name, start + shift, during))
                if changes[instruction.op].freed:
                    samples.append(SampleLine(name, end + shift, after))
                for place, send in sends.get(index, ()):
                    arrival = end + shift + _lag(job, send)
                    lane.append(Span(server, "communication", send, end + shift, arrival, iteration, place))
            begin = clock.update_start[server.stage] + shift
            middle = begin + job.stages[server.stage].reduction
            stop = clock.update_end[server.stage] + shift
            for op, start, end in ((Op.REDUCE, begin, middle), (Op.STEP, middle, stop)):
                index = update.get(op, places)
                lane.append(Span(server, "compute", Instruction(op, server.stage), start, end, iteration, index))
        spans += sorted(lane, key=lambda span: span.start)
    instants = [InstantLine("failure", 0, str(server), f"{server} is dead") for server in plan.dead]
    for iteration in range(iterations):
        for stage, time in enumerate(clock.update_end):
            when = time + iteration * clock.period - first
            instants.append(InstantLine("optimizer step", when, None, f"stage {stage} has stepped"))
    return Timeline(
        title=f"{job.name}: {plan.mode.backward} backward, {plan.mode.optimizer} optimizer",
        time_unit=job.time_unit,
        source="planned",
        spans=tuple(spans),
        instants=tuple(sorted(instants, key=lambda instant: instant.time)),
        samples=tuple(samples),
        period=clock.period,
    )


def plan_clock(plan: Plan) -> Clock:
    """The clock of a plan that need not be legal: what its server or its job does not have is work of its own kind.

    Raises:
        Deadlock: servers of the plan wait for each other.
    """
    job = plan.job
    foreign: dict[tuple[int, int, int], int] = {}
    programs: dict[Server, Sequence[Instruction]] = {}
    for server, program in plan.programs.items():
        work = list(program)
        for index, each in enumerate(program):
            known = 0 <= each.home < job.pipelines and 0 <= each.micro_batch < job.micro_batches
            if each.op in COMPUTE and not (known and each.stage == server.stage):
                unit = (each.stage - server.stage, each.home, each.micro_batch)
                number = foreign.setdefault(unit, job.micro_batches + len(foreign))
                work[index] = Instruction(each.op, server.stage, 0, number)
        programs[server] = work
    if foreign:
        job = msgspec.structs.replace(job, micro_batches=job.micro_batches + len(foreign))
    return run_clock(job, plan.mode, programs)


def _compute(program: Sequence[Instruction]) -> list[tuple[int, Instruction]]:
    return [(index, each) for index, each in enumerate(program) if each.op in COMPUTE]


def _updates(program: Sequence[Instruction]) -> dict[Op, int]:
    return {each.op: index for index, each in enumerate(program) if each.op.is_update}


def _lag(job: Job, send: Instruction) -> int:
    """How long a transfer takes: the latency of its boundary, and no time if its ends are no neighbours."""
    assert send.peer is not None
    low, high = sorted((send.stage, send.peer.stage))
    return job.latency[low] if high == low + 1 and high < job.depth else 0


def _sends(program: Sequence[Instruction]) -> dict[int, list[tuple[int, Instruction]]]:
    """The sends, with their places, by the place of the compute instruction whose result they carry."""
    carried = {Op.SEND_F: Op.F, Op.SEND_B: Op.I}
    producer: dict[tuple[Op, int, int], int] = {}
    sends: dict[int, list[tuple[int, Instruction]]] = {}
    for index, instruction in enumerate(program):
        op = instruction.op
        if op in COMPUTE:
            for phase in op.phases:
                producer[phase, instruction.home, instruction.micro_batch] = index
        elif op in carried:
            source = producer.get((carried[op], instruction.home, instruction.micro_batch))
            if source is not None:
                sends.setdefault(source, []).append((index, instruction))
    return sends
