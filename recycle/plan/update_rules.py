"""What reductions and steps of a plan must hold: one of each for every chunk, behind what they need, in one order."""

from collections.abc import Iterator, Sequence

from recycle.holding import placed
from recycle.job import Server
from recycle.plan.clock import COMPUTE, run_clock
from recycle.plan.instruction import Instruction, Op
from recycle.plan.plan import Plan
from recycle.plan.violation import Violation


def once(plan: Plan) -> Iterator[Violation]:
    """Every server reduces and steps each of its chunks once, when nothing is left to be computed for it."""
    beside = plan.job.overlaps and plan.mode.optimizer == "staggered"
    for server, program in plan.programs.items():
        yield from (_among_others if beside else _behind_all)(plan, server, program)


def _behind_all(plan: Plan, server: Server, program: Sequence[Instruction]) -> Iterator[Violation]:
    tail = [index for index, each in enumerate(program) if each.op is Op.REDUCE or each.op is Op.STEP]
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


def _among_others(plan: Plan, server: Server, program: Sequence[Instruction]) -> Iterator[Violation]:
    """Chunks are reduced while others are computed, and all steps come last."""
    chunks = list(placed(plan.job, server).chunks)
    found = {op: [each.stage for each in program if each.op is op] for op in (Op.REDUCE, Op.STEP)}
    if any(sorted(each) != chunks for each in found.values()):
        names = " ".join(str(each) for each in program if each.op.is_update) or "nothing"
        yield Violation(
            "updates", f"{server} must reduce and step once for each of its chunks, and has {names}", server
        )
        return
    reduced: set[int] = set()
    first = len(program) - len(chunks)
    for index, each in enumerate(program):
        if each.op is Op.REDUCE:
            reduced.add(each.stage)
        elif each.op is Op.STEP and index < first:
            yield Violation("updates", f"{each} comes before all that {server} has to do besides steps", server, index)
        elif each.op in COMPUTE and each.stage in reduced:
            yield Violation("updates", f"{each} comes after chunk {each.stage} is reduced", server, index)


def _step_name(plan: Plan, instruction: Instruction) -> str:
    return instruction.op.value if plan.job.standard else str(instruction)


def order(plan: Plan) -> Iterator[Violation]:
    """Servers reduce and step their chunks in the order in which these are ready: as timed, and peers alike."""
    if plan.job.standard:
        return
    clock = run_clock(plan.job, plan.mode, plan.programs)
    for server, program in plan.programs.items():
        stepped = [update.chunk for update in clock.updates[server]]
        reduced = [chunk for chunk in clock.reductions if chunk in stepped] or stepped
        for op, ready in ((Op.REDUCE, reduced), (Op.STEP, stepped)):
            wrong = _first_wrong(program, op, ready)
            if wrong is not None:
                index, chunk = wrong
                act = "reduces" if op is Op.REDUCE else "steps"
                message = f"{server} {act} chunk {program[index].stage}, and chunk {chunk} is ready first"
                yield Violation("update order", message, server, index)
                break


def _first_wrong(program: Sequence[Instruction], op: Op, ready: Sequence[int]) -> tuple[int, int] | None:
    """Where the first instruction of this kind is that another should be before, and of which chunk that one is."""
    places = (index for index, each in enumerate(program) if each.op is op)
    return next((each for each in zip(places, ready, strict=True) if program[each[0]].stage != each[1]), None)
