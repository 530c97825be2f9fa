from contextlib import contextmanager

import pytest
import torch

from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.record.recorder import Recorder
from recycle.runtime.execute.p2p import P2PTransfers
from recycle.runtime.net.transfer_key import Carried, TransferKey


class Work:
    def __init__(self):
        self.waited = self.preceded = 0

    def precede(self):
        """As a device's, which is waited for later."""
        self.preceded += 1
        return False

    def wait(self):
        self.waited += 1


class Link:
    """A network of one link, which keeps what it is asked for."""

    one_queue = False
    ends_are_right = True
    inside = False

    def __init__(self):
        self.sent = []
        self.received = []

    def link(self, peer):
        assert peer == Server(0, 0)
        return self

    def send(self, tensor, key):
        self.sent.append((tensor, key, Work()))
        return self.sent[-1][-1]

    @contextmanager
    def apart(self, device):
        assert device == Room.device
        self.inside = True
        yield
        self.inside = False

    def receive(self, tensor, key):
        assert self.inside, "it would be received behind all that was computed before"
        self.received.append((tensor, key, Work()))
        return self.received[-1][-1]


class Room:
    """What is received, for which there is room where it is received."""

    device = torch.device("cpu")

    def __init__(self, link):
        self._link = link

    def empty(self):
        assert self._link.inside, "what had this memory before may not be done with it"
        return torch.empty(2)


class Middle:
    def __init__(self, link):
        self.input = self.output = Room(link)


PROGRAM = [Instruction(Op.RECV_F, 1, 0, each, Server(0, 0)) for each in range(8)]


def transfers_over(link, **options):
    return P2PTransfers(link, {1: Middle(link)}, Recorder(Server(0, 1)), **options)


def test_receives_are_posted_ahead_of_their_turn():
    link = Link()
    transfers = transfers_over(link, ahead=2)
    transfers.begin(PROGRAM)
    assert len(link.received) == 2
    transfers.expect(PROGRAM[0])
    assert len(link.received) == 3
    transfers.expect(PROGRAM[7])
    assert len(link.received) == 8
    tensor, work = transfers.take(TransferKey(Carried.OUTPUT, 0, 3))
    assert tensor is link.received[3][0]
    assert work is link.received[3][-1], "who takes it waits for it later"
    assert [work.preceded for *_, work in link.received] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert not any(work.waited for *_, work in link.received)


def test_what_may_end_with_anything_is_filled_before_it_is_received():
    link = Link()
    link.ends_are_right = False
    transfers_over(link, ahead=1).begin(PROGRAM)
    (buffer, *_) = link.received[0]
    assert buffer.isfinite().all()
    assert buffer.unique().numel() == buffer.numel()


def test_where_there_is_one_queue_no_receive_is_posted_before_its_turn():
    link = Link()
    link.one_queue = True
    transfers = transfers_over(link, ahead=2)
    transfers.begin(PROGRAM)
    assert not link.received
    transfers.expect(PROGRAM[0])
    assert len(link.received) == 1


def test_a_send_is_owned_until_waited_for_and_only_too_many_wait():
    link = Link()
    transfers = transfers_over(link, most_sends=2)
    transfers.begin([])
    for each in range(3):
        transfers.send(Instruction(Op.SEND_F, 1, 0, each, Server(0, 0)), torch.zeros(2))
    assert [work.waited for *_, work in link.sent] == [1, 0, 0]
    transfers.finish()
    assert [work.waited for *_, work in link.sent] == [1, 1, 1]


@pytest.mark.parametrize("program", [PROGRAM, []])
def test_an_iteration_begins_when_the_one_before_has_ended(program):
    transfers = transfers_over(Link())
    transfers.begin(program)
    transfers.send(Instruction(Op.SEND_F, 1, 0, 0, Server(0, 0)), torch.zeros(2))
    with pytest.raises(AssertionError, match="mixed up with this iteration's"):
        transfers.begin(PROGRAM)


def test_an_unused_message_is_found_at_the_end():
    transfers = transfers_over(Link())
    transfers.begin(PROGRAM[:1])
    with pytest.raises(AssertionError, match=r"never used: 1RECV_F0\.0<W0_0"):
        transfers.finish()


def test_both_ends_call_a_transfer_the_same():
    link = Link()
    transfers = transfers_over(link, ahead=8)
    gradients = [Instruction(Op.RECV_B, 1, 1, each, Server(0, 0)) for each in range(8)]
    transfers.begin([*PROGRAM, *gradients])
    transfers.expect(gradients[-1])
    for op, stage, home in ((Op.SEND_F, 0, 0), (Op.SEND_B, 2, 1)):
        for each in range(8):
            transfers.send(Instruction(op, stage, home, each, Server(0, 0)), torch.zeros(2))
    sent = [key for _, key, _ in link.sent]
    assert sent == [key for _, key, _ in link.received]
    assert sent[8] == TransferKey(Carried.GRADIENT, 1, 0, 1)
    assert len(set(sent)) == 16
