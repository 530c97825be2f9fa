"""The planned time line: what the clock says about a plan, in the schema that measured runs share."""

from collections.abc import Collection, Sequence

import msgspec

from recycle.holding import placed
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
    held: dict[Server | None, tuple[int, ...]] = {each: placed(job, each).chunks for each in job.servers()}
    for server in sorted(clock.compute):
        name = str(server)
        program = plan.programs[server]
        computed = _compute(program if held[server] else ())
        work = list(zip(computed, clock.start[server], clock.end[server], strict=True))
        sends = _sends(program)
        changes = {chunk: memory_changes(job.stages[chunk]) for chunk in held[server]}
        # An instruction of a chunk that its server does not hold is timed, and takes memory, as one that it does.
        steps = [(each.stage, each.op) for each in clock.compute[server]]
        places = len(program)
        update = _updates(program)
        levels = walk_memory(job, server, steps * iterations)
        lane: list[Span] = []
        for iteration in range(iterations):
            shift = iteration * clock.period - first
            for ((index, instruction), start, end), (chunk, op) in zip(work, steps, strict=True):
                lane.append(Span(server, "compute", instruction, start + shift, end + shift, iteration, index))
                during, after = next(levels)
                if changes[chunk][op].taken:
                    samples.append(SampleLine(name, start + shift, during))
                if changes[chunk][op].freed:
                    samples.append(SampleLine(name, end + shift, after))
                for place, send in sends.get(index, ()):
                    arrival = end + _lag(job, send, held.get(send.peer, ()))
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


def plan_clock(plan: Plan) -> Clock:
    """The clock of a plan that need not be legal: what its server or its job does not have is work of its own kind.

    What a server that holds nothing computes has no time.

    Raises:
        Deadlock: servers of the plan wait for each other.
    """
    job = plan.job
    loads = job.loads
    wide = next(pipeline for pipeline, load in enumerate(loads) if load)
    foreign: dict[tuple[int, int, int], int] = {}
    programs: dict[Server, Sequence[Instruction]] = {}
    for server, program in plan.programs.items():
        held = placed(job, server).chunks
        work = list(program if held else ())
        for index, each in enumerate(work):
            known = 0 <= each.home < job.pipelines and 0 <= each.micro_batch < loads[each.home]
            if each.op in COMPUTE and not (known and each.stage in held):
                unit = (each.stage - held[0], each.home, each.micro_batch)
                number = foreign.setdefault(unit, job.micro_batches + len(foreign))
                work[index] = Instruction(each.op, held[0], wide, number)
        programs[server] = work
    if foreign:
        job = _widened(job, wide, len(foreign))
    return run_clock(job, plan.mode, programs)


def _widened(job: Job, pipeline: int, more: int) -> Job:
    """The job with room for more micro-batches in a pipeline that brings some, behind all that there are."""
    micro_batches = job.micro_batches + more
    if isinstance(job.layout, msgspec.UnsetType):
        return msgspec.structs.replace(job, micro_batches=micro_batches)
    layout = list(job.layout)
    layout[pipeline] = msgspec.structs.replace(layout[pipeline], micro_batches=micro_batches)
    return msgspec.structs.replace(job, micro_batches=micro_batches, layout=tuple(layout))


def _compute(program: Sequence[Instruction]) -> list[tuple[int, Instruction]]:
    return [(index, each) for index, each in enumerate(program) if each.op in COMPUTE]


def _updates(program: Sequence[Instruction]) -> dict[tuple[Op, int], int]:
    return {(each.op, each.stage): index for index, each in enumerate(program) if each.op.is_update}


def _lag(job: Job, send: Instruction, held: Collection[int]) -> int:
    """How long a transfer takes: the latency of its boundary, and no time if its peer does not hold the chunk there.

    Args:
        job: whose transfer it is.
        send: its instruction.
        held: the chunks of its peer.
    """
    target = send.stage + (1 if send.op is Op.SEND_F else -1)
    low = min(send.stage, target)
    return job.latency[low] if 0 <= low < len(job.latency) and target in held else 0


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
