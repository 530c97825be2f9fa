"""The checker: proves that a plan is legal, or names the first instruction that is wrong.

Legality is a table of rules in groups. A group runs only when the ones before it found nothing, because it relies on
what they establish.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from recycle.errors import IllegalPlan
from recycle.holding import holders, placed
from recycle.job import Server
from recycle.plan.clock import COMPUTE, activity_network, run_clock
from recycle.plan.dependency import dependencies
from recycle.plan.instruction import Instruction, Op
from recycle.plan.memory import first_excess
from recycle.plan.plan import Plan
from recycle.plan.timing import Deadlock, executable_order
from recycle.plan.violation import Rule, Violation

SEND_OF = {Op.F: Op.SEND_F, Op.I: Op.SEND_B}


Phases = dict[Op, dict[tuple[int, int, int], tuple[Server, int]]]
"""Per phase, where it is (server, index) for each (stage, home, micro-batch)."""


def check_plan(plan: Plan) -> tuple[Violation, ...]:
    """Everything that is wrong with a plan, as far as one group of rules can see; nothing if it is legal."""
    for group in GROUPS:
        found = [violation for rule in group for violation in rule(plan)]
        if found:
            return tuple(sorted(found, key=_place))
    return ()


def require_legal(plan: Plan, name: object) -> None:
    """See that a plan is legal.

    Args:
        plan: the plan.
        name: what to call it.

    Raises:
        IllegalPlan: it is not.
    """
    violations = check_plan(plan)
    if violations:
        raise IllegalPlan(f"{name}: the plan is illegal ({violations[0].message}); recycle check shows where")


def rows_around(plan: Plan, violation: Violation, reach: int = 3) -> list[str]:
    """The rows of the program around a violation, numbered, the wrong one marked."""
    if violation.server is None or violation.index is None:
        return []
    program = plan.programs.get(violation.server, ())
    first = max(0, violation.index - reach)
    return [
        f"{'>' if index == violation.index else ' '} {violation.server}[{index}] {instruction}"
        for index, instruction in enumerate(program[first : violation.index + reach + 1], first)
    ]


def _place(violation: Violation) -> tuple[int, Server, int]:
    server = violation.server
    index = violation.index
    return (server is not None, server or Server(0, 0), -1 if index is None else index)


def _servers(plan: Plan) -> Iterator[Violation]:
    for lost in plan.dead.lost:
        yield Violation("servers", lost)
    for server in plan.job.servers():
        if server in plan.dead and server in plan.programs:
            yield Violation("servers", f"{server} is dead and has a program", server)
        if server not in plan.dead and server not in plan.programs:
            yield Violation("servers", f"{server} is alive and has no program", server)


def _roles(plan: Plan) -> Iterator[Violation]:
    held = Counter(plan.roles.get(server, server) for server in plan.programs)
    for server, role in plan.roles.items():
        if server in plan.dead:
            yield Violation("roles", f"{server} is dead and cannot act as {role}", server)
        elif placed(plan.job, role) != placed(plan.job, server):
            yield Violation("roles", f"{server} cannot act as {role}: it holds another stage's parameters", server)
        elif held[role] > 1:
            yield Violation("roles", f"{held[role]} servers act as {role}", server)


def _instructions(plan: Plan) -> Iterator[Violation]:
    job = plan.job
    loads = job.loads
    for server, program in plan.programs.items():
        held = placed(job, server).chunks
        for index, instruction in enumerate(program):
            op = instruction.op
            wrong = None
            if instruction.stage not in held:
                mine = " and ".join(map(job.chunk_text, held))
                wrong = f"{instruction} is of {job.chunk_text(instruction.stage)}, and {server} holds {mine}"
            elif op.is_update:
                if plan.form == "compute":
                    wrong = f"{instruction} has no place in a plan of compute form"
            elif not (0 <= instruction.home < job.pipelines and 0 <= instruction.micro_batch < loads[instruction.home]):
                wrong = (
                    f"{instruction}: there is no micro-batch {instruction.home}.{instruction.micro_batch} "
                    f"in {job.pipelines} pipelines of {job.micro_batches if job.even else list(loads)}"
                )
            elif op.is_transfer:
                if plan.form == "compute":
                    wrong = f"{instruction} has no place in a plan of compute form"
                elif instruction.peer not in plan.programs:
                    wrong = f"{instruction}: {instruction.peer} is no live server"
            elif (op is Op.I or op is Op.W) and plan.mode.backward == "fused":
                wrong = f"{instruction}: a plan with a fused backward has B only"
            if wrong:
                yield Violation("instructions", wrong, server, index)


def _phases(plan: Plan) -> Phases:
    found: Phases = {Op.F: {}, Op.I: {}, Op.W: {}}
    for server, program in plan.programs.items():
        for index, instruction in enumerate(program):
            if instruction.op in COMPUTE:
                key = (instruction.stage, instruction.home, instruction.micro_batch)
                for phase in instruction.op.phases:
                    found[phase][key] = (server, index)
    return found


def _once(plan: Plan) -> Iterator[Violation]:
    job = plan.job
    seen: dict[tuple[Op, int, int, int], tuple[Server, int]] = {}
    for server, program in plan.programs.items():
        for index, instruction in enumerate(program):
            for phase in instruction.op.phases if instruction.op in COMPUTE else ():
                key = (phase, instruction.stage, instruction.home, instruction.micro_batch)
                if key in seen:
                    other, place = seen[key]
                    message = f"{instruction} does the {phase.value} that {other}[{place}] has done already"
                    yield Violation("once", message, server, index)
                else:
                    seen[key] = (server, index)
    for phase in (Op.F, Op.I, Op.W):
        for home, load in enumerate(job.loads):
            for chunk, micro_batch in product(range(len(job.stages)), range(load)):
                if (phase, chunk, home, micro_batch) not in seen:
                    message = f"micro-batch {home}.{micro_batch} has no {phase.value} at {job.chunk_text(chunk)}"
                    yield Violation("once", message)


def _together(plan: Plan) -> Iterator[Violation]:
    """A server that computes a phase has before it what it needs of its own: other servers' results are transferred."""
    phases = _phases(plan)
    for phase, found in phases.items():
        for (stage, home, micro_batch), (server, index) in found.items():
            instruction = plan.programs[server][index]
            for need in dependencies(phase, stage, len(plan.job.stages)):
                other, place = phases[need.phase][need.stage, home, micro_batch]
                if other == server and place > index:
                    needed = f"{server}[{place}] {plan.programs[server][place]}"
                    message = f"{instruction} comes before the {need.phase.value} it needs, {needed}"
                    yield Violation("together", message, server, index)
                elif other != server and need.stage == stage:
                    message = f"{instruction} is on {server}, and {other}[{place}] holds the activation it needs"
                    yield Violation("together", message, server, index)


def _routing(plan: Plan) -> Iterator[Violation]:
    if not plan.mode.keeps_home:
        return
    acts = {server: plan.roles.get(server, server) for server in plan.programs}
    holder = {role: server for server, role in acts.items()}
    held_by = holders(plan.job)
    for server, program in plan.programs.items():
        pipeline = plan.job.pipeline_of(acts[server])
        for index, instruction in enumerate(program):
            home = held_by[instruction.stage].get(instruction.home)
            if instruction.op is Op.F and instruction.home != pipeline and home in holder:
                message = f"{instruction} is away from home: {holder[home]} is alive and the routing is 'home'"
                yield Violation("routing", message, server, index)


def _memory(plan: Plan) -> Iterator[Violation]:
    for server, program in plan.programs.items():
        steps = ((instruction.stage, instruction.op) for instruction in program)
        excess = first_excess(plan.job, server, steps)
        if excess is not None:
            index, needed = excess
            place = f"{program[index]} brings {server} to {needed} {plan.job.memory_unit}s"
            yield Violation("memory", f"{place}, and its limit is {placed(plan.job, server).limit}", server, index)


def _transfers(plan: Plan) -> Iterator[Violation]:
    """Every result that another server needs is sent behind it and received before its use; nothing else moves.

    A send that waits for the next compute instruction would make the result later than the clock, which sees none.
    """
    phases = _phases(plan)
    expected: dict[tuple[Server, Instruction], tuple[int, str]] = {}
    for phase in (Op.F, Op.I):
        for (stage, home, micro_batch), (server, index) in phases[phase].items():
            for need in dependencies(phase, stage, len(plan.job.stages)):
                source, place = phases[need.phase][need.stage, home, micro_batch]
                if source == server:
                    continue
                send = SEND_OF[need.phase]
                expected[source, Instruction(send, need.stage, home, micro_batch, server)] = (place, "behind")
                expected[server, Instruction(send.partner, stage, home, micro_batch, source)] = (index, "before")
    found: set[tuple[Server, Instruction]] = set()
    for server, program in plan.programs.items():
        latest = -1
        for index, instruction in enumerate(program):
            if not instruction.op.is_transfer:
                latest = index if instruction.op.is_compute else latest
                continue
            key = (server, instruction)
            if key not in expected:
                yield Violation(
                    "transfers", f"{instruction} has no partner: nothing at its other end needs it", server, index
                )
                continue
            place, side = expected[key]
            if key in found:
                yield Violation("transfers", f"{instruction} is there twice", server, index)
            elif (index < place) != (side == "before"):
                compute = f"{server}[{place}] {program[place]}"
                yield Violation("transfers", f"{instruction} must come {side} {compute}", server, index)
            elif side == "behind" and latest > place:
                following = next(each for each in range(place + 1, index) if program[each].op.is_compute)
                compute = f"{server}[{following}] {program[following]}"
                yield Violation("transfers", f"{instruction} must come before {compute}", server, index)
            found.add(key)
    for server, instruction in expected:
        if (server, instruction) not in found:
            yield Violation("transfers", f"{server} lacks {instruction}", server)


def _pair_order(plan: Plan) -> Iterator[Violation]:
    sent: dict[tuple[Server, Server], list[Instruction]] = {}
    received: dict[tuple[Server, Server], list[tuple[int, Instruction]]] = {}
    for server, program in plan.programs.items():
        for index, instruction in enumerate(program):
            if instruction.peer is None:
                continue
            if instruction.op.is_send:
                sent.setdefault((server, instruction.peer), []).append(instruction)
            else:
                received.setdefault((instruction.peer, server), []).append((index, instruction))
    for (source, target), sends in sent.items():
        for send, (index, receive) in zip(sends, received[source, target], strict=True):
            if not _are_partners(send, receive):
                message = f"{receive} is next on {target}, and {source} sends {send} first"
                yield Violation("pair order", message, target, index)
                break


def _are_partners(mine: Instruction, other: Instruction) -> bool:
    """Whether two instructions are the ends of one transfer; two servers may have transfers of several chunks."""
    if not other.op.is_transfer or other.op is not mine.op.partner:
        return False
    across = 1 if mine.op in (Op.SEND_F, Op.RECV_B) else -1
    return other.stage == mine.stage + across and (other.home, other.micro_batch) == (mine.home, mine.micro_batch)


def _deadlock(plan: Plan) -> Iterator[Violation]:
    """No server waits for ever, even if everything waits for its partners; a compute plan's results just arrive.

    A send waits for its receive, and a reduction for all live servers that hold the chunk: so a lowered plan needs
    nothing that begins before its turn, as where all that a device starts runs in one queue.
    """
    if plan.form == "compute":
        servers = list(plan.programs)
        work = activity_network(plan.job, plan.programs)
        try:
            for _ in executable_order(work.lanes, work.need):
                pass
        except Deadlock as deadlock:
            for lane, index in deadlock.stuck:
                instruction = plan.programs[servers[lane]][index]
                yield Violation(
                    "deadlock", f"{instruction} waits for ever: servers wait for each other", servers[lane], index
                )
        return
    reached = _reached(plan)
    for server, place in reached.items():
        if place < len(plan.programs[server]):
            message = f"{plan.programs[server][place]} waits for ever: {_missed(plan, reached, server)}"
            yield Violation("deadlock", message, server, place)


def _reached(plan: Plan) -> dict[Server, int]:
    """How far each server of a lowered plan comes in its list, where the two ends of a transfer wait for each other."""
    holding = Counter(chunk for server in plan.programs for chunk in placed(plan.job, server).chunks)
    come: dict[int, set[Server]] = {}
    position = dict.fromkeys(plan.programs, 0)
    ready = list(plan.programs)
    while ready:
        server = ready.pop()
        program = plan.programs[server]
        while position[server] < len(program):
            instruction = program[position[server]]
            peer, met = instruction.peer, {server}
            if peer is not None:
                theirs, there = plan.programs[peer], position[peer]
                if (
                    there == len(theirs)
                    or theirs[there].peer != server
                    or not _are_partners(instruction, theirs[there])
                ):
                    break
                met.add(peer)
            elif instruction.op is Op.REDUCE:
                met = come.setdefault(instruction.stage, set())
                met.add(server)
                if len(met) < holding[instruction.stage]:
                    break
            for each in met:
                position[each] += 1
            ready += met - {server}
    return position


def _missed(plan: Plan, position: Mapping[Server, int], server: Server) -> str:
    """For whom a server waits that cannot go on, and where that one is."""
    instruction = plan.programs[server][position[server]]
    peer = instruction.peer
    if peer is None:
        waited = [each for each in plan.programs if instruction.stage in placed(plan.job, each).chunks]
        peer = next(each for each in waited if instruction not in plan.programs[each][position[each] :][:1])
    there = plan.programs[peer][position[peer] :]
    return f"{peer} is at {there[0]}" if there else f"{peer} has finished"


def _figures(plan: Plan) -> Iterator[Violation]:
    clock = run_clock(plan.job, plan.mode, plan.programs)
    for field, value in (("makespan", clock.makespan), ("period", clock.period)):
        recorded = getattr(plan, field)
        if recorded != value:
            yield Violation("figures", f"the plan says {field} {recorded}, and its instructions take {value}")
    if plan.bound > clock.period:
        yield Violation("figures", f"the plan says that no period is below {plan.bound}, and its own is {clock.period}")


def _updates(plan: Plan) -> Iterator[Violation]:
    """Every server reduces and steps each of its chunks once, when nothing is left to be computed."""
    for server, program in plan.programs.items():
        tail = [index for index, each in enumerate(program) if each.op.is_update]
        chunks = placed(plan.job, server).chunks
        order = list(dict.fromkeys(program[index].stage for index in tail))
        pairs = [(op, chunk) for chunk in order for op in (Op.REDUCE, Op.STEP)]
        if sorted(order) != list(chunks) or [(program[index].op, program[index].stage) for index in tail] != pairs:
            names = " ".join(_step_name(plan, program[index]) for index in tail) or "nothing"
            every = "" if len(chunks) == 1 else " for each of its chunks"
            message = f"{server} must reduce and step once{every}, in this order, and has {names}"
            yield Violation("updates", message, server, tail[0] if tail else None)
        elif tail and tail[0] != len(program) - len(tail):
            late = next(index for index in range(len(program)) if index > tail[0] and index not in tail)
            yield Violation("updates", f"{program[late]} comes after {server} reduces its gradients", server, late)


def _step_name(plan: Plan, instruction: Instruction) -> str:
    return instruction.op.value if plan.job.standard else str(instruction)


def _update_order(plan: Plan) -> Iterator[Violation]:
    """Servers reduce and step their chunks in the order in which these are ready: as timed, and peers alike."""
    if plan.job.standard:
        return
    clock = run_clock(plan.job, plan.mode, plan.programs)
    for server, program in plan.programs.items():
        reduced = [(index, each.stage) for index, each in enumerate(program) if each.op is Op.REDUCE]
        for (index, chunk), update in zip(reduced, clock.updates[server], strict=True):
            if chunk != update.chunk:
                message = f"{server} reduces chunk {chunk}, and chunk {update.chunk} is ready first"
                yield Violation("update order", message, server, index)
                break


def _lowered(rule: Rule) -> Rule:
    return lambda plan: rule(plan) if plan.form == "lowered" else iter(())


GROUPS: Sequence[Sequence[Rule]] = (
    (_servers, _roles),
    (_instructions,),
    (_once,),
    (_together, _routing),
    (_memory,),
    (_lowered(_updates),),
    (_lowered(_transfers),),
    (_lowered(_pair_order),),
    (_deadlock,),
    (_lowered(_update_order),),
    (_figures,),
)
