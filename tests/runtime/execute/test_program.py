"""Where reductions begin in a list: in the order of its REDUCEs, and as early as that allows."""

import pytest

from harness.examples import paper_job, placed_job
from recycle.plan.instruction import Instruction
from recycle.runtime.execute.program import Program

ONE, TWO = paper_job(stages=1), placed_job("interleaved:2")


def listed(text):
    return [Instruction.parse(each) for each in text.split()]


@pytest.mark.parametrize(
    ("job", "text", "complete"),
    [
        (ONE, "0F0.0 0F0.1 0B0.0 0I0.1 0W0.1 0REDUCE 0STEP", {}),
        (TWO, "0REDUCE 0STEP", {None: [0]}),
        (TWO, "0F0.0 2F0.0 2B0.0 0B0.0 2REDUCE 2STEP 0REDUCE 0STEP", {"2B0.0": [2], "0B0.0": [0]}),
        # Chunk 0 is complete first, and its turn is second.
        (TWO, "0B0.0 2I0.0 2W0.0 2REDUCE 2STEP 0REDUCE 0STEP", {"2W0.0": [2, 0]}),
    ],
)
def test_a_chunk_is_reduced_behind_its_last_gradient_when_its_turn_has_come(job, text, complete):
    program = Program(listed(text), not job.standard)
    assert {each and str(each): chunks for each, chunks in program.complete.items()} == complete


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        # Behind the last transfer, in the next instruction that computes, or when there is none.
        ("2RECV_F0.0<W0_1 2B0.0 2SEND_B0.0>W0_1 0B0.0 2REDUCE 2STEP 0REDUCE 0STEP", {"0B0.0": [2, 0]}),
        ("2B0.0 2SEND_B0.0>W0_1 0I0.0 0I0.1 0W0.0 0W0.1 2REDUCE 2STEP 0REDUCE 0STEP", {"0I0.0": [2], "0W0.1": [0]}),
        ("2B0.0 0B0.0 2SEND_B0.0>W0_1 2REDUCE 2STEP 0REDUCE 0STEP", {None: [2, 0]}),
        ("2B0.0 0RECV_B0.0<W0_1 0B0.0 2REDUCE 0REDUCE 2STEP 0STEP", {"0B0.0": [2, 0]}),
        ("2REDUCE 2STEP 0REDUCE 0STEP", {None: [2, 0]}),
    ],
)
def test_in_one_queue_no_sum_begins_before_the_last_transfer(text, complete):
    program = Program(listed(text), early=True, one_queue=True)
    assert {each and str(each): chunks for each, chunks in program.complete.items()} == complete
    assert all(each.op.is_update for each in program.update)
    assert len(program.update) == 4
