import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recycle.runtime.keep.layout import count_bytes, cut_evenly
from recycle.runtime.keep.pieces import ROW, SMALL, blocks_of, gather_small
from recycle.state.ladder import StatePart
from recycle.state.redundancy import Redundancy

SIZES = st.lists(st.sampled_from([1, 4, SMALL - 1, SMALL, SMALL + 1]), max_size=8)


class OnDevice(torch.Tensor):
    """A tensor that has to be copied to the host before its bytes can be read."""

    copied = 0
    is_cpu = False

    def cpu(self):
        OnDevice.copied += self.nbytes
        return self.as_subclass(torch.Tensor).clone()


@given(SIZES)
def test_small_pieces_are_gathered_and_large_ones_are_not_copied(sizes):
    block = [memoryview(bytearray([number % 251]) * size) for number, size in enumerate(sizes)]
    found = gather_small(block)
    assert b"".join(found) == b"".join(block)
    # A keeper's memory is written through a window only from what can be written itself.
    assert not any(each.readonly for each in found)
    assert all(any(each is other for other in found) for each in block if len(each) >= SMALL)
    assert len(found) <= 2 * sum(size >= SMALL for size in sizes) + 1


@pytest.mark.parametrize("redundancy", [Redundancy(1, 2), Redundancy(2, 3)], ids=str)
def test_each_byte_of_a_device_comes_to_the_host_once(redundancy):
    state = {"long": torch.randn(2 * ROW), "small": torch.tensor(3), "half": torch.randn(100).bfloat16()}
    part = StatePart(0, 0, 3, 0, 1, needed=redundancy.needed)

    def content(state):
        blocks = blocks_of(cut_evenly(state, 1), part, redundancy)
        return [(number, bytes(byte for piece in block for byte in piece)) for number, block in blocks]

    expected = content(state)
    OnDevice.copied = 0
    assert content({name: each.as_subclass(OnDevice) for name, each in state.items()}) == expected
    assert OnDevice.copied == count_bytes(state)
