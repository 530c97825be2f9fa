"""Lowering passes: from compute instructions to the lists that servers execute. Each pass is a function of its own."""

from collections.abc import Mapping, Sequence

import msgspec

from recycle.holding import placed
from recycle.job import Job, Server
from recycle.plan.clock import Clock, activity_network
from recycle.plan.instruction import Instruction, Op
from recycle.plan.timing import global_timing
from recycle.planner.model.problem import Problem, Programs

Lists = dict[Server, list[Instruction]]


def instructions(problem: Problem, programs: Programs) -> Lists:
    """The compute instructions of task programs, on the servers in order."""
    micro_batches, total = problem.job.micro_batches, problem.total
    ops = problem.ops
    lists: Lists = {}
    for server in sorted(programs):
        chunks = placed(problem.job, server).chunks
        lists[server] = [
            Instruction(
                ops[task % 3], chunks[task // 3 // total], task // 3 % total // micro_batches, task // 3 % micro_batches
            )
            for task in programs[server]
        ]
    return lists


def fuse(job: Job, clock: Clock) -> Clock:
    """Join I and W into B wherever W follows I at once and nobody needs the input gradient before W ends.

    A fused backward needs one launch and one read of its inputs instead of two. The times of all other instructions
    stay as they are, so neither period nor makespan can grow.
    """
    needed: list[dict[tuple[int, int], tuple[int, Server]]] = [{} for _ in job.stages]
    for server, program in clock.compute.items():
        for instruction, time in zip(program, clock.start[server], strict=True):
            if instruction.op is Op.I or instruction.op is Op.B:
                needed[instruction.stage][instruction.home, instruction.micro_batch] = time, server
    lists: Lists = {}
    starts, ends = {}, {}
    target: list[int] = []
    count = 0
    for server, program in clock.compute.items():
        fused: list[Instruction] = []
        start: list[int] = []
        end: list[int] = []
        for instruction, begin, stop in zip(program, clock.start[server], clock.end[server], strict=True):
            if instruction.op is Op.W and fused and fused[-1].op is Op.I and start[-1] < stop:
                chunk, home, micro_batch = instruction.stage, instruction.home, instruction.micro_batch
                same = (fused[-1].stage, fused[-1].home, fused[-1].micro_batch) == (chunk, home, micro_batch)
                deadline, consumer = needed[chunk - 1][home, micro_batch] if chunk else (stop, server)
                lag = job.lag(chunk, chunk - 1) if consumer != server else 0
                if same and stop + lag <= deadline:
                    fused[-1] = Instruction(Op.B, chunk, home, micro_batch)
                    end[-1] = stop
                    target[-1] = -1
                    target.append(count - 1)
                    continue
            fused.append(instruction)
            start.append(begin)
            end.append(stop)
            target.append(count)
            count += 1
        lists[server], starts[server], ends[server] = fused, start, end
    # All servers starting at 0, a fused B may still make one iteration longer on its own.
    return msgspec.structs.replace(
        clock,
        compute=lists,
        start=starts,
        end=ends,
        makespan=global_timing(activity_network(job, lists)).makespan,
        sequence=[target[node] for node in clock.sequence if target[node] >= 0],
    )


def add_transfers(job: Job, clock: Clock) -> Lists:
    """Add a send behind each result that the next server needs, and its receive on that server.

    Compute instructions are placed in the order in which they end. When one is placed, its send is appended to the
    sender's list and the receive to the receiver's, both at once: every transfer is a point of one global order, so
    the lists cannot deadlock even if each send waits for its receive, and both ends of every pair of servers see their
    transfers in the same order.
    """
    servers = list(clock.compute)
    flat = [instruction for program in clock.compute.values() for instruction in program]
    place = [server for server in servers for _ in clock.compute[server]]
    end = [time for server in servers for time in clock.end[server]]
    owner: list[dict[tuple[int, int], Server]] = [{} for _ in job.stages]
    for instruction, server in zip(flat, place, strict=True):
        if instruction.op is Op.F:
            owner[instruction.stage][instruction.home, instruction.micro_batch] = server
    lists: Lists = {server: [] for server in servers}
    last = len(job.stages) - 1
    for node in sorted(clock.sequence, key=end.__getitem__):
        instruction, server = flat[node], place[node]
        lists[server].append(instruction)
        op, chunk, home, micro_batch = instruction.op, instruction.stage, instruction.home, instruction.micro_batch
        if op is Op.F and chunk < last:
            target, send = chunk + 1, Op.SEND_F
        elif (op is Op.I or op is Op.B) and chunk > 0:
            target, send = chunk - 1, Op.SEND_B
        else:
            continue
        peer = owner[target][home, micro_batch]
        if peer != server:
            lists[server].append(Instruction(send, chunk, home, micro_batch, peer))
            lists[peer].append(Instruction(send.partner, target, home, micro_batch, server))
    return lists


def add_updates(clock: Clock, lists: Mapping[Server, Sequence[Instruction]]) -> Lists:
    """Add each chunk's REDUCE and STEP behind all else, in the clock's order."""
    return {
        server: [
            *program,
            *(Instruction(op, update.chunk) for update in clock.updates[server] for op in (Op.REDUCE, Op.STEP)),
        ]
        for server, program in lists.items()
    }


def lower(job: Job, clock: Clock) -> tuple[Clock, Lists]:
    """All passes in their order, from timed compute instructions to what servers execute, and its times."""
    clock = fuse(job, clock)
    return clock, add_updates(clock, add_transfers(job, clock))
