"""The clock: when each instruction of a plan runs, and from that its makespan, period and bubbles."""

import operator
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from recycle.holding import costs_on
from recycle.job import Job, Server, Stage
from recycle.plan.dependency import other_server_need
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.plan.timing import ActivityNetwork, Lane, Timing, Update, global_timing, staggered_timing

Program = Sequence[Instruction]

COMPUTE = frozenset(op for op in Op if op.is_compute)


class Clock(msgspec.Struct, frozen=True):
    """The times of the compute instructions of a plan.

    Attributes:
        compute: per server, its compute instructions in order.
        start: per server, when each of them starts.
        end: per server, when each of them ends.
        updates: per server, its reductions and optimizer steps in order, one of each for every chunk that it holds.
        makespan: end of the last compute instruction if all servers start at 0.
        period: time per iteration in the steady state.
        sequence: the instructions in an order that respects every wait, as places in the concatenation of ``compute``.
    """

    compute: Mapping[Server, Program]
    start: Mapping[Server, Sequence[int]]
    end: Mapping[Server, Sequence[int]]
    updates: Mapping[Server, Sequence[Update]]
    makespan: int
    period: int
    sequence: Sequence[int]

    def bubble(self, server: Server) -> float:
        """The share of the period in which the server neither computes nor updates."""
        busy = sum(end - start for start, end in zip(self.start[server], self.end[server], strict=True))
        busy += sum(update.end - update.start for update in self.updates[server])
        return 1 - busy / self.period if self.period else 0.0


def duration(stage: Stage, op: Op) -> int:
    """Time that a compute instruction of a chunk keeps its server busy, by what the chunk costs there."""
    costs = {Op.F: stage.forward, Op.I: stage.input_gradient, Op.W: stage.weight_gradient}
    return sum(costs[phase] for phase in op.phases)


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
        updates=dict(zip(compute, timing.updates, strict=True)),
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
    chunks = range(len(job.stages))
    done = [{phase: [-1] * total for phase in (Op.F, Op.I, Op.W)} for _ in chunks]
    completes = [{op: [done[chunk][phase] for phase in op.phases] for op in COMPUTE} for chunk in chunks]
    length: list[int] = []
    lanes = []
    for server, program in compute.items():
        first = len(length)
        costs = costs_on(job, server)
        cost = {chunk: {op: duration(stage, op) for op in COMPUTE} for chunk, stage in costs.items()}
        length += [cost[each.stage][each.op] for each in program]
        last = dict.fromkeys(costs, -1)
        for node, each in enumerate(program, first):
            for table in completes[each.stage][each.op]:
                table[each.home * width + each.micro_batch] = node
            last[each.stage] = node
        updates = tuple(stage.update for stage in costs.values())
        lanes.append(Lane(range(first, len(length)), tuple(last), tuple(last.values()), updates))
    nothing = [-1] * total
    source: list[dict[Op, list[int]]] = [{} for _ in chunks]
    delay: list[dict[Op, int]] = [{} for _ in chunks]
    for chunk in chunks:
        for op in COMPUTE:
            other = other_server_need(op, chunk, len(chunks))
            source[chunk][op] = done[other.stage][other.phase] if other else nothing
            delay[chunk][op] = job.lag(chunk, other.stage) if other else 0
    need: list[int] = []
    lag: list[int] = []
    for lane, program in zip(lanes, compute.values(), strict=True):
        needs = [source[each.stage][each.op][each.home * width + each.micro_batch] for each in program]
        need += needs
        if len(lane.chunks) == 1:
            lag += [delay[each.stage][each.op] for each in program]
        else:
            # Between neighbouring chunks on one server nothing is transferred.
            ways = zip(needs, program, strict=True)
            lag += [0 if other in lane.nodes else delay[each.stage][each.op] for other, each in ways]
    return ActivityNetwork(length, need, lag, lanes, len(job.stages))
