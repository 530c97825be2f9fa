import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.errors import PlanFileError
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op

numbers = st.integers(0, 999_999)
servers = st.builds(Server, numbers, numbers)


@st.composite
def any_instruction(draw):
    op = draw(st.sampled_from(Op))
    stage = draw(numbers)
    if op.is_update:
        return Instruction(op, stage)
    peer = draw(servers) if op.is_transfer else None
    return Instruction(op, stage, draw(numbers), draw(numbers), peer)


@given(any_instruction())
def test_text_form_round_trips(instruction):
    assert Instruction.parse(str(instruction)) == instruction


@pytest.mark.parametrize(
    ("instruction", "text"),
    [
        (Instruction(Op.F, 2, 1, 5), "2F1.5"),
        (Instruction(Op.B, 0, 0, 11), "0B0.11"),
        (Instruction(Op.SEND_F, 2, 1, 5, Server(0, 3)), "2SEND_F1.5>W0_3"),
        (Instruction(Op.RECV_B, 2, 1, 5, Server(0, 3)), "2RECV_B1.5<W0_3"),
        (Instruction(Op.STEP, 2), "2STEP"),
    ],
)
def test_text_forms(instruction, text):
    assert str(instruction) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a form"),
        ("F1.5", "expected a form"),
        ("2X1.5", "expected a form"),
        ("2F1", "expected a form"),
        ("2F", "F needs a micro-batch"),
        ("2STEP1.5", "STEP takes no micro-batch"),
        ("2F1.5>W0_3", "F names no other server"),
        ("2SEND_F1.5", "SEND_F needs a server behind >"),
        ("2SEND_F1.5<W0_3", "SEND_F needs a server behind >"),
        ("2RECV_F1.5>W0_3", "RECV_F needs a server behind <"),
        ("2F1.5 ", "expected a form"),
        ("2F-1.5", "expected a form"),
        ("2STEP4", "expected a form"),
        ("2SEND_F4>W1_3", "expected a form"),
    ],
)
def test_other_texts_are_refused(text, reason):
    with pytest.raises(PlanFileError, match=reason):
        Instruction.parse(text)


def test_every_op_is_of_one_kind_and_has_one_partner():
    for op in Op:
        assert [op.is_compute, op.is_transfer, op.is_update].count(True) == 1
        assert (op.is_send or op.is_receive) == op.is_transfer
        if op.is_transfer:
            assert op.partner.partner is op
            assert op.partner.is_send != op.is_send
        assert bool(op.phases) == op.is_compute
