"""What a plan that copies state must hold: each piece is copied once, sent on once, and costs what the plan says."""

from collections import Counter
from collections.abc import Iterator

from recycle.job import Server
from recycle.plan.copy_timing import plan_times
from recycle.plan.instruction import Instruction, Op
from recycle.plan.plan import Plan
from recycle.plan.violation import Violation


def misplaced(plan: Plan, server: Server, instruction: Instruction) -> str | None:
    """What is wrong with copying this at all, if anything is."""
    if plan.copies is None:
        return f"{instruction} has no place in a plan without copies"
    if instruction.piece >= plan.copies.pieces:
        return f"{instruction}: the pieces of each server's part are 0 to {plan.copies.pieces - 1}"
    if instruction.peer is not None and instruction.peer not in plan.programs:
        return f"{instruction}: {instruction.peer} is no live server"
    return f"{instruction} goes nowhere" if instruction.peer == server else None


def once(plan: Plan) -> Iterator[Violation]:
    """Every server copies each of its pieces once, and sends all of them to the same other servers."""
    copies = plan.copies
    if copies is None:
        return
    if not plan.job.even or not plan.job.standard:
        yield Violation("copies", "a plan with copies has one chunk per server, and pipelines that are alike")
        return
    for server, program in plan.programs.items():
        holders = sorted({each.peer for each in program if each.op is Op.SEND_S and each.peer is not None})
        if len(holders) != copies.holders:
            message = f"{server} sends its part to {len(holders)} other servers, and the plan says {copies.holders}"
            yield Violation("copies", message, server)
            continue
        found = Counter((each.peer, each.piece) for each in program if each.op in (Op.SNAP, Op.SEND_S))
        for peer in (None, *holders):
            for piece in range(copies.pieces):
                if found[peer, piece] != 1:
                    count = "never" if not found[peer, piece] else f"{found[peer, piece]} times"
                    what = "copied to host memory" if peer is None else f"sent to {peer}"
                    yield Violation("copies", f"piece {piece} of {server} is {count} {what}", server)


def transfers(plan: Plan) -> Iterator[Violation]:
    """Each piece that is sent is received, and nothing else is."""
    sent = Counter(
        (server, each.peer, each.piece)
        for server, program in plan.programs.items()
        for each in program
        if each.op is Op.SEND_S
    )
    for server, program in plan.programs.items():
        for index, each in enumerate(program):
            if each.op is not Op.RECV_S or each.peer is None:
                continue
            if not sent[each.peer, server, each.piece]:
                message = f"{each} has no partner: {each.peer} does not send it, or not once more"
                yield Violation("copies", message, server, index)
            sent[each.peer, server, each.piece] -= 1
    for (source, target, piece), count in sent.items():
        if count > 0:
            yield Violation("copies", f"{target} lacks the receive of piece {piece} of {source}", target)


def order(plan: Plan) -> Iterator[Violation]:
    """A piece leaves when it is in host memory."""
    for server, program in plan.programs.items():
        there: set[int] = set()
        for index, each in enumerate(program):
            if each.op is Op.SNAP:
                there.add(each.piece)
            elif each.op is Op.SEND_S and each.piece not in there:
                message = f"{each} leaves before its piece is in host memory"
                yield Violation("copies", message, server, index)


def delay(plan: Plan) -> Iterator[Violation]:
    """Copies lengthen the period by what the plan says."""
    if plan.copies is None:
        return
    found = plan_times(plan).delay
    if found != plan.copies.delay:
        message = f"the plan says that copies make its period longer by {plan.copies.delay}, and they do by {found}"
        yield Violation("copies", message)
