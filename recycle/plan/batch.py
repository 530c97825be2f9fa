"""The batch: by which names data, dropout and losses know micro-batches, whichever pipelines bring them."""

from collections.abc import Iterable
from itertools import accumulate

from recycle.job import Job
from recycle.plan.instruction import Instruction


class Batch:
    """All micro-batches of an iteration, in as many equal rows as there are pipelines.

    The row and the place in it are what the data and the dropout of a micro-batch depend on, and a loss is divided by
    the numbers of both. Where pipelines are alike, a row is what one of them brings. Where they are not, micro-batches
    are counted through, so that a job that brings as many by as many pipelines that are alike trains the same. Where
    that goes not up, there is one row.

    Args:
        job: whose batch.

    Attributes:
        rows: how many there are.
        length: of each.
    """

    def __init__(self, job: Job) -> None:
        total = sum(job.loads)
        self.rows = job.pipelines if total % job.pipelines == 0 else 1
        self.length = total // self.rows
        self._starts = list(accumulate(job.loads, initial=0))

    def place(self, home: int, number: int) -> tuple[int, int]:
        """The row of a micro-batch of a pipeline, and its place there."""
        row, place = divmod(self._starts[home] + number, self.length)
        return row, place


def first_of_each(program: Iterable[Instruction], micro_batches: int) -> list[Instruction]:
    """A program for a smaller batch: without all but so many micro-batches of each pipeline.

    What is left keeps its order. Instructions wait only for others of the same micro-batch, and both ends of a link
    leave out the same transfers, so that servers can execute it like the whole one. Of 1F1B it is 1F1B. Only the chunks
    of one server may be ready in another order than that in which it reduces them.
    """
    return [each for each in program if each.micro_batch < micro_batches]
