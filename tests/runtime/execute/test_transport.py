import pytest
import torch

from recycle.control.view import View
from recycle.job import Job, Server, Stage
from recycle.plan.instruction import Instruction, Op
from recycle.record.recorder import Recorder
from recycle.runtime.errors import InterruptedTransport
from recycle.runtime.execute.stage import TensorSpec
from recycle.runtime.execute.transport import Transport


class Work:
    def __init__(self):
        self.waited = 0

    def wait(self):
        self.waited += 1


class Wire:
    """A network that keeps what it is asked for."""

    def __init__(self, epoch=0):
        self.view = View(epoch, (Server(0, 0), Server(0, 1)))
        self.sent = []
        self.received = []

    def send(self, tensor, peer, tag):
        self.sent.append((tensor, peer, tag, Work()))
        return self.sent[-1][-1]

    def receive(self, tensor, peer, tag):
        self.received.append((tensor, peer, tag, Work()))
        return self.received[-1][-1]


class Middle:
    input = output = TensorSpec((2,), torch.float32)


JOB = Job(1, 8, (Stage(1, 1, 1, 0, 0, 1, 0, 8),) * 3, (0, 0))
PROGRAM = [Instruction(Op.RECV_F, 1, 0, each, Server(0, 0)) for each in range(8)]


def transport(wire, **options):
    return Transport(wire, JOB, Middle(), Recorder(Server(0, 1)), **options)


def test_receives_are_posted_ahead_of_their_turn():
    wire = Wire()
    link = transport(wire, ahead=2)
    link.begin(PROGRAM)
    assert len(wire.received) == 2
    link.expect(PROGRAM[0])
    assert len(wire.received) == 3
    link.expect(PROGRAM[7])
    assert len(wire.received) == 8
    assert link.take(Op.RECV_F, 0, 3) is wire.received[3][0]
    assert [work.waited for *_, work in wire.received] == [0, 0, 0, 1, 0, 0, 0, 0]


def test_a_send_is_owned_until_waited_for_and_only_too_many_wait():
    wire = Wire()
    link = transport(wire, most_sends=2)
    link.begin([])
    for each in range(3):
        link.send(Instruction(Op.SEND_F, 1, 0, each, Server(0, 0)), torch.zeros(2))
    assert [work.waited for *_, work in wire.sent] == [1, 0, 0]
    assert link.in_flight == 2
    link.finish()
    assert [work.waited for *_, work in wire.sent] == [1, 1, 1]
    assert link.in_flight == 0


def test_what_an_interrupted_iteration_left_is_refused():
    link = transport(Wire())
    link.begin(PROGRAM)
    with pytest.raises(InterruptedTransport, match=r"4 transfers .* make a new transport in a new epoch"):
        link.begin(PROGRAM)


def test_an_unused_message_is_found_at_the_end():
    link = transport(Wire())
    link.begin(PROGRAM[:1])
    with pytest.raises(AssertionError, match=r"never used: 1RECV_F0\.0<W0_0"):
        link.finish()


def test_tags_agree_at_both_ends_and_differ_otherwise_also_between_epochs():
    tags = []
    for epoch in (0, 1):
        wire = Wire(epoch)
        link = transport(wire, ahead=8, most_sends=100)
        link.begin([*PROGRAM, *[Instruction(Op.RECV_B, 1, 0, each, Server(0, 0)) for each in range(8)]])
        link.expect(PROGRAM[7])
        for op in (Op.SEND_F, Op.SEND_B):
            for each in range(8):
                link.send(Instruction(op, 1, 0, each, Server(0, 0)), torch.zeros(2))
        assert [tag for _, _, tag, _ in wire.sent] == [tag for _, _, tag, _ in wire.received]
        tags += [tag for _, _, tag, _ in wire.sent]
    assert len(set(tags)) == 32
