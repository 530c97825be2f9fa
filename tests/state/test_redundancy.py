"""How often a version is kept, and on which hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.state.errors import StateError
from recycle.state.redundancy import Redundancy, piece_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("off", None), ("copies=1", Redundancy(1, 1)), ("copies=2", Redundancy(1, 2)), ("parity=4+2", Redundancy(4, 6))],
)
def test_what_is_asked_for_is_read_and_said_alike(text, expected):
    assert Redundancy.parse(text) == expected
    assert expected is None or str(expected) == text


@pytest.mark.parametrize(
    "text",
    ["", "2", "copies", "copies=0", "copies=-1", "copies=257", "parity=4", "parity=1+1", "parity=4+0", "parity=200+57"],
)
def test_what_makes_no_sense_is_refused(text):
    with pytest.raises(StateError, match="give off, copies=N with N from 1, or parity=K"):
        Redundancy.parse(text)


def test_what_it_takes():
    assert [Redundancy.parse(text).taken(1200) for text in ("copies=2", "parity=3+1", "parity=4+2")] == [
        2400,
        1600,
        1800,
    ]
    assert [Redundancy.parse(text).sent(1200) for text in ("copies=2", "parity=3+1", "parity=4+2")] == [
        1200,
        1200,
        1500,
    ]


@given(st.integers(0, 10_000), st.integers(1, 20))
def test_pieces_cover_a_part_with_less_than_a_byte_too_much_in_each(size, needed):
    assert 0 <= needed * piece_size(size, needed) - size < needed
