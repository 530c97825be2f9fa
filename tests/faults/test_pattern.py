import pytest
from hypothesis import given

from harness.examples import paper_job, placed_job
from recycle.errors import UserError
from recycle.faults.errors import FaultError
from recycle.faults.pattern import InstructionPattern
from recycle.job import Server
from recycle.plan.instruction import Instruction
from tests.faults.strategies import patterns

LIST = ["2F10.5", "2RECV_F1.5<W0_1", "2F1.5", "2SEND_F1.5>W0_3", "2SEND_F1.50>W0_3", "3F1.5", "2W1.5", "2STEP"]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2F1.5", ["2F1.5"]),
        ("2F", ["2F10.5", "2F1.5"]),
        ("2F1", ["2F1.5"]),
        ("2SEND_F1.5", ["2SEND_F1.5>W0_3"]),
        ("2SEND_F", ["2SEND_F1.5>W0_3", "2SEND_F1.50>W0_3"]),
        ("2SEND_F1.5>W0_3", ["2SEND_F1.5>W0_3"]),
        ("2SEND_F1.5>W0_2", []),
        ("2RECV_F1.5<W0_1", ["2RECV_F1.5<W0_1"]),
        ("2F0", []),
        ("2STEP", ["2STEP"]),
    ],
)
def test_what_is_left_out_is_any(text, meant):
    pattern = InstructionPattern.parse(text)
    assert [each for each in LIST if pattern.matches(Instruction.parse(each))] == meant


@given(patterns())
def test_the_text_form_parses_back(pattern):
    assert InstructionPattern.parse(str(pattern)) == pattern


@pytest.mark.parametrize(
    "text", ["", "2", "F1.5", "F 1.3", "2X1.5", "2SEND", "2F1.", "2F1.5.6", "2f1.5", "2F01", "\uff12F1.5"]
)
def test_what_starts_no_instruction_is_refused(text):
    with pytest.raises(FaultError, match=r"write how its text starts, for example 2F1\.5"):
        InstructionPattern.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2STEP1", "STEP has no micro-batch; write 2STEP"),
        ("2F1.5>W0_3", "only sends have a server behind >"),
        ("2SEND_F1.5<W0_3", "only sends have a server behind >"),
    ],
)
def test_parts_that_an_op_does_not_have_are_refused(text, message):
    with pytest.raises(FaultError, match=message):
        InstructionPattern.parse(text)


@pytest.mark.parametrize(
    ("text", "server", "message"),
    [
        ("3F1.5", Server(1, 2), "of stage 3, and W1_2 has stage 2: write 2F..., or name a server of stage 3"),
        ("2F3", Server(1, 2), "the job has pipelines 0 to 2"),
        ("2F1.6", Server(1, 2), "a pipeline has micro-batches 0 to 5"),
        ("0RECV_F", Server(1, 0), "stage 0 has no RECV_F; choose another instruction"),
        ("3SEND_F", Server(1, 3), "stage 3 has no SEND_F"),
        ("2SEND_F1.5>W7_3", Server(1, 2), "server W7_3: this job has pipelines 0 to 2"),
    ],
)
def test_what_a_server_never_executes_is_refused(text, server, message):
    with pytest.raises(UserError, match=message):
        InstructionPattern.parse(text).require_possible(paper_job(), server)


def test_a_server_of_several_chunks_executes_those_of_them_all():
    job = placed_job("v-shaped")
    for text in ("0F", "3W1.0", "3RECV_F"):
        InstructionPattern.parse(text).require_possible(job, Server(0, 0))
    with pytest.raises(UserError, match=r"'1F', of chunk 1, and W0_0 has chunk 0 and chunk 3: write 0F\.\.\., or name"):
        InstructionPattern.parse("1F").require_possible(job, Server(0, 0))
    with pytest.raises(UserError, match="chunk 3 has no SEND_F"):
        InstructionPattern.parse("3SEND_F").require_possible(job, Server(0, 0))
