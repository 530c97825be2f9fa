"""A stage's state that is handed over."""

import queue

import msgspec
import pytest
import torch

from recycle.runtime.errors import ConnectionLost, RunError
from recycle.runtime.join.handover import LARGEST_HEAD, StateHead, TensorHead, pack, receive_state, send_state, unpack
from recycle.runtime.net.network import Several
from recycle.runtime.net.transfer_key import STATE

SECRET = b"of both"


class Line:
    """Both ends of a link within one process: what is sent is there to be received."""

    def __init__(self):
        self.sent = queue.SimpleQueue()

    def send(self, tensor, _):
        self.sent.put(tensor.clone())
        return Several()

    def receive(self, tensor, _):
        tensor.copy_(self.sent.get(timeout=120))
        return Several()


def test_a_state_arrives_as_it_was_sent():
    state = {
        "matrix": torch.randn(3, 4).t(),
        "step": torch.tensor(7.0),
        "half": torch.randn(5).bfloat16(),
        "count": torch.tensor([2**40]),
        "nothing": torch.empty(0, 3),
    }
    line = Line()
    send_state(line, SECRET, 12, state)
    step, received = receive_state(line, SECRET)
    assert step == 12
    torch.testing.assert_close(received, {name: each.contiguous() for name, each in state.items()}, rtol=0, atol=0)


class AlteringLine(Line):
    """On which somebody alters a bit of what comes at one place."""

    def __init__(self, place):
        super().__init__()
        self._left = place

    def receive(self, tensor, key):
        done = super().receive(tensor, key)
        if self._left == 0:
            tensor.reshape(-1).view(torch.uint8)[-1] ^= 1
        self._left -= 1
        return done


@pytest.mark.parametrize("place", [2, 3, 4])
def test_what_is_altered_on_the_way_is_refused(place):
    line = AlteringLine(place)
    send_state(line, SECRET, 12, {"matrix": torch.randn(3, 4), "step": torch.tensor(7.0)})
    with pytest.raises(ConnectionLost, match="version 12 of a peer's state is not as it was sent"):
        receive_state(line, SECRET)


def test_what_was_sent_with_another_secret_is_refused():
    line = Line()
    send_state(line, b"of another view", 12, {"step": torch.tensor(7.0)})
    with pytest.raises(ConnectionLost, match="is not as it was sent"):
        receive_state(line, SECRET)


def bytes_of(content):
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


@pytest.mark.parametrize("length", [0, -1, LARGEST_HEAD + 1])
def test_a_head_of_an_impossible_length_is_refused(length):
    line = Line()
    line.send(torch.tensor([length]), STATE)
    with pytest.raises(ConnectionLost, match=f"a head of {length} bytes"):
        receive_state(line, SECRET)


@pytest.mark.parametrize(
    "content",
    [
        b"no message",
        msgspec.msgpack.encode({"step": 1}),
        msgspec.msgpack.encode(StateHead(1, [TensorHead("a", (2,), "object")])),
        msgspec.msgpack.encode(StateHead(1, [TensorHead("a", (-2,), "float32")])),
    ],
    ids=["noise", "another", "type", "shape"],
)
def test_a_head_that_is_none_is_refused(content):
    line = Line()
    line.send(torch.tensor([len(content)]), STATE)
    line.send(bytes_of(content), STATE)
    with pytest.raises(ConnectionLost, match="a state that cannot be read"):
        receive_state(line, SECRET)


def test_a_small_state_is_packed_into_as_many_bytes_whatever_it_is():
    state = {"step": torch.tensor(7.0), "half": torch.randn(5).bfloat16(), "nothing": torch.empty(0, 3)}
    packed = pack(12, state, 1 << 12)
    assert packed.nbytes == 1 << 12
    torch.testing.assert_close(unpack(12, packed), state, rtol=0, atol=0)
    with pytest.raises(ConnectionLost, match="is said to be of version 13"):
        unpack(13, packed)
    with pytest.raises(RunError, match="room for 64"):
        pack(12, state, 64)
