"""Where reductions begin in a list: in the order of its REDUCEs, and as early as that allows."""

import pytest

from harness.examples import overlapped, paper_job, placed_job
from recycle.plan.instruction import Instruction
from recycle.runtime.execute.program import Program

ONE, TWO = paper_job(stages=1), placed_job("interleaved:2")


def listed(text):
    return [Instruction.parse(each) for each in text.split()]


@pytest.mark.parametrize(
    ("job", "text", "last", "complete"),
    [
        (overlapped(ONE), "0F0.0 0F0.1 0B0.0 0I0.1 0W0.1 0REDUCE 0STEP", "0W0.1", {"0W0.1": [0]}),
        (overlapped(ONE), "0REDUCE 0STEP", "", {None: [0]}),
        (ONE, "0F0.0 0B0.0 0REDUCE 0STEP", "", {}),
        (TWO, "0F0.0 2F0.0 2B0.0 0B0.0 2REDUCE 2STEP 0REDUCE 0STEP", "", {"2B0.0": [2], "0B0.0": [0]}),
        (overlapped(TWO), "2B0.0 0B0.0 2REDUCE 2STEP 0REDUCE 0STEP", "2B0.0 0B0.0", {"2B0.0": [2], "0B0.0": [0]}),
        # Chunk 0 is complete first, and its turn is second.
        (overlapped(TWO), "0B0.0 2I0.0 2W0.0 2REDUCE 2STEP 0REDUCE 0STEP", "2W0.0", {"2W0.0": [2, 0]}),
        (overlapped(TWO), "2B0.0 2REDUCE 0B0.0 0REDUCE 2STEP 0STEP", "2B0.0 0B0.0", {}),
        (overlapped(TWO), "2B0.0 0B0.0 0REDUCE 2REDUCE 0STEP 2STEP", "0B0.0", {}),
    ],
)
def test_buckets_of_a_chunk_begin_within_its_last_gradient_where_its_turn_has_come(job, text, last, complete):
    program = Program(listed(text), job)
    assert program.last == set(listed(last))
    assert {each and str(each): chunks for each, chunks in program.complete.items()} == complete
