import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.control.membership.errors import ControlError
from recycle.control.membership.view import Member, View
from recycle.errors import UserError
from recycle.job import Server

MEMBERS = st.builds(
    Member, st.builds(Server, st.integers(0, 999_999), st.integers(0, 999_999)), st.integers(0, 10**9 - 1)
)


@given(MEMBERS)
def test_a_member_is_read_back_from_its_name(member: Member) -> None:
    assert Member.parse(str(member)) == member


@pytest.mark.parametrize("text", ["", "W1_2", "W1_2#", "W1_2#0 ", "W1_2#-1", "x1_2#0", "W1_2#0\n", "W1_2#٣"])
def test_no_other_text_is_a_member(text: str) -> None:
    with pytest.raises(UserError, match="W1_2#0"):
        Member.parse(text)


def test_a_view_knows_ranks_peers_lives_and_who_is_in_it() -> None:
    members = tuple(Member.parse(name) for name in ("W0_0#0", "W0_1#2", "W1_1#0"))
    view = View(3, members)
    assert view.servers == (Server(0, 0), Server(0, 1), Server(1, 1))
    assert view.rank(Server(1, 1)) == 2
    assert view.peers(1) == (Server(0, 1), Server(1, 1))
    assert view.member(Server(0, 1)) == members[1]
    assert [view.names(each) for each in members] == [True, True, True]
    assert not any(view.names(Member.parse(name)) for name in ("W0_0#1", "W0_1#1", "W1_0#0", "W9_9#0"))
    assert issubclass(ControlError, UserError)
