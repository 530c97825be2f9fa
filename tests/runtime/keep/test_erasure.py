from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.runtime.keep.erasure import missing_rows, spare_rows


@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_any_pieces_that_are_enough_give_all_others_to_the_bit(needed, spare, length, seed):
    rows = [*np.random.default_rng(seed).integers(0, 256, (needed, length), np.uint8)]
    whole = [*rows, *spare_rows(rows, spare)]
    for held in combinations(range(needed + spare), needed):
        found = missing_rows({number: whole[number] for number in held}, needed, needed + spare)
        assert found.keys() == set(range(needed)) - {*held}
        assert all(np.array_equal(row, rows[number]) for number, row in found.items())


def test_one_piece_of_parity_is_xor():
    rows = [np.array([1, 2, 255], np.uint8), np.array([1, 7, 15], np.uint8), np.array([4, 4, 4], np.uint8)]
    (parity,) = spare_rows(rows, 1)
    assert parity.tolist() == [4, 1, 244]


def test_fewer_than_are_needed_are_a_mistake_of_ours():
    with pytest.raises(AssertionError):
        missing_rows({0: np.zeros(1, np.uint8)}, 2, 3)
