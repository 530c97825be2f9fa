"""In which order lists can be executed if everything waits: each send for its receive, each reduction for all peers."""

from collections import Counter
from collections.abc import Iterator, Mapping

from recycle.holding import placed
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.plan.plan import Plan


class Standstill(Exception):
    """Servers wait for each other. ``position`` holds how far each server comes in its list."""

    def __init__(self, position: Mapping[Server, int]) -> None:
        super().__init__("servers wait for each other")
        self.position = position


def meeting_order(plan: Plan) -> Iterator[tuple[Server, int]]:
    """The instructions of a lowered plan in an order in which they can be executed, as server and place in its list.

    The two ends of a transfer follow each other, and so do the reductions of a chunk.

    Raises:
        Standstill: there is none.
    """
    holding = Counter(chunk for server in plan.programs for chunk in placed(plan.job, server).chunks)
    come: dict[int, set[Server]] = {}
    position = dict.fromkeys(plan.programs, 0)
    ready = list(plan.programs)
    while ready:
        server = ready.pop()
        program = plan.programs[server]
        place = position[server]
        while place < len(program):
            instruction = program[place]
            peer = instruction.peer
            if peer is not None:
                other = plan.programs[peer]
                there = position[peer]
                if there >= len(other) or not _meet(server, instruction, other[there]):
                    break
                yield peer, there
                position[peer] = there + 1
                ready.append(peer)
            elif instruction.op is Op.REDUCE:
                met = come.setdefault(instruction.stage, set())
                met.add(server)
                if len(met) < holding[instruction.stage]:
                    break
                for each in met - {server}:
                    yield each, position[each]
                    position[each] += 1
                    ready.append(each)
            yield server, place
            place += 1
        position[server] = place
    if any(place < len(plan.programs[server]) for server, place in position.items()):
        raise Standstill(position)


def are_partners(mine: Instruction, other: Instruction) -> bool:
    """Whether two transfers are the ends of one; between two servers there may be some of several chunks."""
    if other.op is not mine.op.partner:
        return False
    across = 1 if mine.op in (Op.SEND_F, Op.RECV_B) else -1
    return other.stage == mine.stage + across and (other.home, other.micro_batch) == (mine.home, mine.micro_batch)


def _meet(server: Server, mine: Instruction, other: Instruction) -> bool:
    return other.peer == server and other.op.is_transfer and are_partners(mine, other)
