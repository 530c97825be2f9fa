"""Where reductions begin in a list: in the order of its REDUCEs, and as early as that allows."""

import pytest

from harness.examples import overlapped, paper_job, placed_job
from recycle.plan.instruction import Instruction
from recycle.runtime.execute.program import Program

ONE, TWO = paper_job(stages=1), placed_job("interleaved:2")


def listed(text):
    return [Instruction.parse(each) for each in text.split()]


@pytest.mark.parametrize(
    ("job", "text", "complete"),
    [
        (overlapped(ONE), "0F0.0 0F0.1 0B0.0 0I0.1 0W0.1 0REDUCE 0STEP", {}),
        (overlapped(TWO), "0REDUCE 0STEP", {None: [0]}),
        (ONE, "0F0.0 0B0.0 0REDUCE 0STEP", {}),
        (TWO, "0F0.0 2F0.0 2B0.0 0B0.0 2REDUCE 2STEP 0REDUCE 0STEP", {"2B0.0": [2], "0B0.0": [0]}),
        (overlapped(TWO), "2B0.0 0B0.0 2REDUCE 2STEP 0REDUCE 0STEP", {"2B0.0": [2], "0B0.0": [0]}),
        # Chunk 0 is complete first, and its turn is second.
        (overlapped(TWO), "0B0.0 2I0.0 2W0.0 2REDUCE 2STEP 0REDUCE 0STEP", {"2W0.0": [2, 0]}),
        (overlapped(TWO), "2B0.0 2REDUCE 0B0.0 0REDUCE 2STEP 0STEP", {}),
        (overlapped(TWO), "2B0.0 0B0.0 0REDUCE 2REDUCE 0STEP 2STEP", {}),
    ],
)
def test_a_chunk_is_reduced_behind_its_last_gradient_when_its_turn_has_come(job, text, complete):
    program = Program(listed(text), job)
    assert {each and str(each): chunks for each, chunks in program.complete.items()} == complete
