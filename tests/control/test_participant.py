"""The names of processes say which rank of which member they are."""

import pytest

from recycle.control.membership.errors import ControlError
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, ServerRank
from recycle.job import Server

MEMBER = Member(Server(1, 2), 3)


@pytest.mark.parametrize(("ranks", "names"), [(1, ["W1_2#3"]), (2, ["W1_2#3 rank 0", "W1_2#3 rank 1"])])
def test_a_name_can_be_read_again(ranks, names):
    everybody = Participant.all_of(MEMBER, ranks)
    assert [str(each) for each in everybody] == names
    assert tuple(Participant.parse(name, ranks) for name in names) == everybody
    assert [each.rank for each in everybody] == [ServerRank(number, ranks) for number in range(ranks)]


def test_what_is_no_name_is_refused():
    with pytest.raises(ControlError, match="member 'W1_2'"):
        Participant.parse("W1_2 rank 1", 2)
