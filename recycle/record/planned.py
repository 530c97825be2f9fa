"""The planned time line: what the clock says about a plan, in the schema that measured runs share."""

from collections.abc import Sequence

from recycle.holding import placed
from recycle.plan.clock import COMPUTE, run_clock
from recycle.plan.instruction import Instruction, Op
from recycle.plan.memory import memory_changes, walk_memory
from recycle.plan.plan import Plan
from recycle.record.recording import InstantLine, SampleLine
from recycle.record.timeline import Span, Timeline


def timeline(plan: Plan, iterations: int = 1) -> Timeline:
    """The planned time line of a plan, unrolled over some iterations in the steady state.

    Transfers take the latency of their boundary, from the end of the instruction whose result they carry.

    Args:
        plan: a legal one.
        iterations: how many.
    """
    job = plan.job
    clock = run_clock(job, plan.mode, plan.programs)
    first = min((start[0] for start in clock.start.values() if start), default=0)
    spans: list[Span] = []
    samples: list[SampleLine] = []
    for server in sorted(clock.compute):
        name = str(server)
        program = plan.programs[server]
        computed = _compute(program)
        work = list(zip(computed, clock.start[server], clock.end[server], strict=True))
        sends = _sends(program)
        changes = {chunk: memory_changes(job.stages[chunk]) for chunk in placed(job, server).chunks}
        places = len(program)
        update = _updates(program)
        levels = walk_memory(job, server, [(each.stage, each.op) for _, each in computed] * iterations)
        lane: list[Span] = []
        for iteration in range(iterations):
            shift = iteration * clock.period - first
            for (index, instruction), start, end in work:
                change = changes[instruction.stage][instruction.op]
                lane.append(Span(server, "compute", instruction, start + shift, end + shift, iteration, index))
                during, after = next(levels)
                if change.taken:
                    samples.append(SampleLine(name, start + shift, during))
                if change.freed:
                    samples.append(SampleLine(name, end + shift, after))
                for place, send in sends.get(index, ()):
                    arrival = end + job.latency[send.stage if send.op is Op.SEND_F else send.stage - 1]
                    lane.append(Span(server, "communication", send, end + shift, arrival + shift, iteration, place))
            for chunk, begin, stop in clock.updates[server]:
                middle = begin + job.stages[chunk].reduction
                for op, start, end in ((Op.REDUCE, begin, middle), (Op.STEP, middle, stop)):
                    index, step = update.get((op, chunk), places), Instruction(op, chunk)
                    lane.append(Span(server, "compute", step, start + shift, end + shift, iteration, index))
        spans += sorted(lane, key=lambda span: span.start)
    stepped: dict[int, int] = {}
    for updates in clock.updates.values():
        for chunk, _, stop in updates:
            stepped[chunk] = max(stepped.get(chunk, stop), stop)
    instants = [InstantLine("failure", 0, str(server), f"{server} is dead") for server in plan.dead]
    for iteration in range(iterations):
        for stage, time in sorted(stepped.items()):
            when = time + iteration * clock.period - first
            instants.append(InstantLine("optimizer step", when, None, f"{job.chunk_text(stage)} has stepped"))
    return Timeline(
        title=f"{job.name}: {plan.mode.backward} backward, {plan.mode.optimizer} optimizer",
        time_unit=job.time_unit,
        source="planned",
        spans=tuple(spans),
        instants=tuple(sorted(instants, key=lambda instant: instant.time)),
        samples=tuple(samples),
        period=clock.period,
    )


def _compute(program: Sequence[Instruction]) -> list[tuple[int, Instruction]]:
    return [(index, each) for index, each in enumerate(program) if each.op in COMPUTE]


def _updates(program: Sequence[Instruction]) -> dict[tuple[Op, int], int]:
    return {(each.op, each.stage): index for index, each in enumerate(program) if each.op.is_update}


def _sends(program: Sequence[Instruction]) -> dict[int, list[tuple[int, Instruction]]]:
    """The sends, with their places, by the place of the compute instruction whose result they carry."""
    carried = {Op.SEND_F: Op.F, Op.SEND_B: Op.I}
    producer: dict[tuple[Op, int, int, int], int] = {}
    sends: dict[int, list[tuple[int, Instruction]]] = {}
    for index, instruction in enumerate(program):
        op = instruction.op
        if op in COMPUTE:
            for phase in op.phases:
                producer[phase, instruction.stage, instruction.home, instruction.micro_batch] = index
        elif op in carried:
            source = producer.get((carried[op], instruction.stage, instruction.home, instruction.micro_batch))
            if source is not None:
                sends.setdefault(source, []).append((index, instruction))
    return sends
