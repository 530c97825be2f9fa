"""What the launcher watches: members whose processes are not its own."""

import itertools

import pytest

from harness.memory_store import MemoryStore
from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.board.heartbeat_board import Beat
from recycle.control.membership.durations import Durations
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, View
from recycle.runtime.launch.supervise.watches import ElsewhereWatch

TOKEN, HOST = "token", "a host"
DURATIONS = Durations()
MEMBER = Member.parse("W1_0#1")


class Run:
    """A launcher's watch, and a member elsewhere whose host gives a sign in each second as long as it is alive."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.board = Board(self.store, TOKEN)
        self.view = View(3, (MEMBER,))
        self.now = 100.0
        self.is_alive = True
        self.watch = ElsewhereWatch(DURATIONS.silence, DURATIONS, lambda: self.now)
        for each in Participant.all_of(MEMBER, 1):
            self.board.beats.settle(each, HOST)

    def go_on(self, seconds, attack=lambda: None):
        for _ in range(seconds):
            self.now += 1.0
            if self.is_alive:
                self.board.beats.glance(HOST, Beat(int(self.now * 1000)))
            attack()
            self.watch.look(self.board, self.view, [MEMBER], 1)

    @property
    def is_dead(self):
        return self.board.failures.death(MEMBER) is not None


@pytest.fixture
def run():
    run = Run()
    run.go_on(10)
    return run


def take_away(run):
    """The ways in which a stranger takes signs of life away, again and again."""
    beat = keys.beat(HOST)
    (home,) = (keys.home(each) for each in Participant.all_of(MEMBER, 1))
    older = itertools.cycle([run.store.get(beat)])
    run.go_on(1)
    return {
        "host deleted": lambda: run.store.delete(home),
        "sign deleted": lambda: run.store.delete(beat),
        "garbage": lambda: run.store.set(beat, b"garbage"),
        "older sign": lambda: run.store.set(beat, next(older)),
    }


def test_who_gives_no_sign_for_longer_than_a_network_may_be_away_is_dead(run):
    run.is_alive = False
    run.go_on(int(DURATIONS.doubt))
    assert not run.is_dead
    run.go_on(2)
    assert run.is_dead


@pytest.mark.parametrize("attack", ["host deleted", "sign deleted", "garbage", "older sign"])
def test_whose_signs_a_stranger_takes_away_is_called_to_an_alarm_and_lives_if_it_answers(run, attack):
    strike = take_away(run)[attack]
    for _ in range(4):
        run.go_on(int(DURATIONS.answer) + 2, strike)
        assert run.board.failures.alarm(run.view.epoch) is not None
        run.view = View(run.view.epoch + 1, (MEMBER,))
    assert not run.is_dead


@pytest.mark.parametrize("attack", ["host deleted", "sign deleted", "garbage", "older sign"])
def test_the_dead_are_missed_at_last_whatever_a_stranger_takes_away(run, attack):
    strike = take_away(run)[attack]
    run.is_alive = False
    run.go_on(int(3 * DURATIONS.answer) + 3, strike)
    assert run.is_dead
