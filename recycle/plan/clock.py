"""The clock: when each instruction of a plan runs, and from that its makespan, period and bubbles."""

import operator
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from recycle.job import Job, Server
from recycle.plan.dependency import other_server_need
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.plan.timing import ActivityNetwork, Lane, Timing, global_timing, staggered_timing

Program = Sequence[Instruction]

COMPUTE = frozenset(op for op in Op if op.is_compute)


class Clock(msgspec.Struct, frozen=True):
    """The times of the compute instructions of a plan.

    Attributes:
        compute: per server, its compute instructions in order.
        start: per server, when each of them starts.
        end: per server, when each of them ends.
        update_start: per stage, when the reduction and the optimizer step begin.
        update_end: per stage, when its optimizer step has ended.
        makespan: end of the last compute instruction if all servers start at 0.
        period: time per iteration in the steady state.
        sequence: the instructions in an order that respects every wait, as places in the concatenation of ``compute``.
    """

    compute: Mapping[Server, Program]
    start: Mapping[Server, Sequence[int]]
    end: Mapping[Server, Sequence[int]]
    update_start: Sequence[int]
    update_end: Sequence[int]
    makespan: int
    period: int
    sequence: Sequence[int]

    def bubble(self, server: Server) -> float:
        """The share of the period in which the server neither computes nor updates."""
        busy = sum(end - start for start, end in zip(self.start[server], self.end[server], strict=True))
        busy += self.update_end[server.stage] - self.update_start[server.stage]
        return 1 - busy / self.period if self.period else 0.0


def duration(job: Job, instruction: Instruction) -> int:
    """Time that a compute instruction keeps its server busy."""
    stage = job.stages[instruction.stage]
    costs = {Op.F: stage.forward, Op.I: stage.input_gradient, Op.W: stage.weight_gradient}
    return sum(costs[phase] for phase in instruction.op.phases)


def run_clock(job: Job, mode: Mode, programs: Mapping[Server, Iterable[Instruction]]) -> Clock:
    """Time the instructions of a plan; transfers and updates among them take no part in the order.

    Every phase that an instruction needs must be somewhere in the programs, and every stage one of the job's.

    Raises:
        Deadlock: servers wait for each other.
    """
    compute = {server: [each for each in program if each.op in COMPUTE] for server, program in programs.items()}
    work = activity_network(job, compute)
    timing: Timing = staggered_timing(work) if mode.optimizer == "staggered" else global_timing(work)
    start, end = {}, {}
    for server, lane in zip(compute, work.lanes, strict=True):
        place = slice(lane.nodes.start, lane.nodes.stop)
        start[server] = timing.start[place]
        end[server] = list(map(operator.add, start[server], work.duration[place]))
    return Clock(
        compute=compute,
        start=start,
        end=end,
        update_start=timing.update_start,
        update_end=[time + stage.update for time, stage in zip(timing.update_start, job.stages, strict=True)],
        makespan=timing.makespan,
        period=timing.period,
        sequence=timing.sequence,
    )


def activity_network(job: Job, compute: Mapping[Server, Sequence[Instruction]]) -> ActivityNetwork:
    """The work of compute instructions in their order; nodes are numbered server by server.

    What an instruction needs from its own server must come before it in that server's program.
    """
    total = job.pipelines * job.micro_batches
    width = job.micro_batches
    done = [{phase: [-1] * total for phase in (Op.F, Op.I, Op.W)} for _ in range(job.depth)]
    length: list[int] = []
    lanes = []
    for server, program in compute.items():
        first = len(length)
        cost = {op: duration(job, Instruction(op, server.stage)) for op in COMPUTE}
        length += [cost[instruction.op] for instruction in program]
        completes = {op: [done[server.stage][phase] for phase in op.phases] for op in COMPUTE}
        for node, instruction in enumerate(program, first):
            for table in completes[instruction.op]:
                table[instruction.home * width + instruction.micro_batch] = node
        lanes.append(Lane(server.stage, range(first, len(length))))
    need: list[int] = []
    lag: list[int] = []
    nothing = [-1] * total
    for server, program in compute.items():
        source, delay = {}, {}
        for op in COMPUTE:
            other = other_server_need(op, server.stage, job.depth)
            source[op] = done[other.stage][other.phase] if other else nothing
            delay[op] = job.lag(server.stage, other.stage) if other else 0
        need += [source[each.op][each.home * width + each.micro_batch] for each in program]
        lag += [delay[each.op] for each in program]
    return ActivityNetwork(length, need, lag, lanes, [stage.update for stage in job.stages])
