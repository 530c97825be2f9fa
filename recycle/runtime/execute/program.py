"""A server's instruction list as its worker runs it: in two parts, and with where reductions begin."""

from collections.abc import Mapping, Sequence

from recycle.plan.instruction import Instruction, Op


class Program:
    """A list in two parts: what belongs to single micro-batches, and what comes when all of them are done.

    Where servers hold several chunks, each is summed from its last gradient on, while its servers compute others: so
    peers for one need not wait for who computes another, and the clock does not let them. Sums begin in the list's
    order, which all peers have, and at every server before all that the second part sums with them. In one queue they
    begin behind the server's last transfer: before that, one would hold up what others wait for.

    Args:
        instructions: of the list.
        early: whether sums may begin before all of the first part is done.
        one_queue: whether what a rank starts runs one after the other.

    Attributes:
        work: the first part.
        update: the second part, with the reductions.
        complete: by the instruction of the first part after which they can begin, the chunks that are reduced early;
            under None those of a server that computes nothing.
    """

    def __init__(self, instructions: Sequence[Instruction], early: bool, one_queue: bool = False) -> None:
        self.work = [each for each in instructions if not each.op.is_update]
        self.update = [each for each in instructions if each.op.is_update]
        self.complete = self._complete(one_queue) if early else {}

    def _complete(self, one_queue: bool) -> Mapping[Instruction | None, Sequence[int]]:
        computed = [each for each in self.work if each.op.is_compute]
        last = {each.stage: place for place, each in enumerate(computed)}
        transfers = [row for row, each in enumerate(self.work) if each.op.is_transfer and one_queue]
        place = sum(each.op.is_compute for each in self.work[: max(transfers, default=0)])
        found: dict[Instruction | None, list[int]] = {}
        for chunk in (each.stage for each in self.update if each.op is Op.REDUCE):
            place = max(place, last.get(chunk, 0))
            found.setdefault([*computed, None][place], []).append(chunk)
        return found

    def is_last(self, instruction: Instruction) -> bool:
        """Whether a REDUCE or a STEP is the last one of the list."""
        return instruction == next(each for each in reversed(self.update) if each.op is instruction.op)

    def is_first(self, instruction: Instruction) -> bool:
        """Whether a REDUCE or a STEP is the first one of the list."""
        return instruction == next(each for each in self.update if each.op is instruction.op)
