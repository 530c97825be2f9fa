"""Where a member's signs of life are looked for: on the host that it is on."""

import pytest

from recycle.control.board.board import Board
from recycle.control.board.heartbeat_board import Beat
from recycle.control.membership.messages import Verdict
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member
from recycle.control.store.store import Store

A, B, C = (Member.parse(name) for name in ("W0_0#0", "W0_1#0", "W1_1#1"))


@pytest.fixture
def board(store: Store) -> Board:
    return Board(store, "token")


def test_signs_of_life_are_those_of_the_host_that_a_member_is_on(board: Board) -> None:
    board.beats.glance("one", Beat(1))
    board.beats.glance("one", Beat(2))
    for member, host in ((A, "one"), (B, "other")):
        board.beats.settle(Participant(member), host)
    assert board.beats.homes(map(Participant, [A, B, C])) == {Participant(A): "one", Participant(B): "other"}
    assert board.beats.of_hosts(["one", "other"]) == {"one": Beat(2)}
    assert board.beats.counts([A, B, C]) == {A: 2, B: 0, C: 0}


def test_a_member_of_several_ranks_is_as_alive_as_the_host_of_the_least_of_them(board: Board) -> None:
    for host, count in (("one", 5), ("other", 3)):
        board.beats.glance(host, Beat(count))
    first, second = Participant.all_of(A, 2)
    board.beats.settle(first, "one")
    assert board.beats.counts([A], 2) == {A: 0}
    board.beats.settle(second, "other")
    assert board.beats.counts([A], 2) == {A: 3}


def test_the_host_of_who_has_yet_to_ask_for_a_place_is_kept_and_that_of_an_earlier_life_is_not(board: Board) -> None:
    earlier, later = Member(A.server, 0), Member(A.server, 2)
    board.verdicts.propose(Verdict(3, (str(Member(A.server, 1)), str(B)), 3))
    for member in (earlier, later, B):
        board.beats.settle(Participant(member), "one")
    board.forget(3, (Member(A.server, 1), B))
    assert set(board.beats.homes(map(Participant, [earlier, later, B]))) == {Participant(later), Participant(B)}
