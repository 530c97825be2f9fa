"""How often a version is kept, and on which hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.state.errors import StateError
from recycle.state.redundancy import Racks, Redundancy, piece_size


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


def test_hosts_are_found_by_any_of_their_names():
    racks = Racks.parse("a1, a2/b1,10.0.0.9")
    assert [racks.find("a2", "10.0.0.2"), racks.find("b2", "10.0.0.9"), racks.find("c", "d")] == ["a1", "b1", ""]
    racks.require_known({"a1", "a2", "b1", "b2", "10.0.0.9"})
    with pytest.raises(StateError, match=r"racks: b1 is no host of this run; name them as one of 10.0.0.9, a1, a2"):
        racks.require_known({"a1", "a2", "10.0.0.9"})
    assert not Racks.parse("")


@pytest.mark.parametrize(
    ("text", "said"), [("a,,b", "with commas"), ("a/", "with commas"), ("a,b/a", "a is named twice")]
)
def test_what_names_no_racks_is_refused(text, said):
    with pytest.raises(StateError, match=said):
        Racks.parse(text)
