from hypothesis import given
from hypothesis import strategies as st

from recycle.runtime.keep.pieces import SMALL, gather_small

SIZES = st.lists(st.sampled_from([1, 4, SMALL - 1, SMALL, SMALL + 1]), max_size=8)


@given(SIZES)
def test_small_pieces_are_gathered_and_large_ones_are_not_copied(sizes):
    block = [memoryview(bytearray([number % 251]) * size) for number, size in enumerate(sizes)]
    found = gather_small(block)
    assert b"".join(found) == b"".join(block)
    # A keeper's memory is written through a window only from what can be written itself.
    assert not any(each.readonly for each in found)
    assert all(any(each is other for other in found) for each in block if len(each) >= SMALL)
    assert len(found) <= 2 * sum(size >= SMALL for size in sizes) + 1
