"""The alarm watch sees everybody who asks to be let in, and whether the store does its work."""

import subprocess
import threading
from types import SimpleNamespace

import pytest

from harness.examples import paper_job
from harness.memory_store import MemoryStore
from harness.started import wait_until
from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Death, Description, JoinRequest, Verdict
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import SOLE, Member, View
from recycle.job import Server
from recycle.runtime.launch.supervise.cancellation import Cancellation
from recycle.runtime.net.stop_line import NO_LINE
from recycle.runtime.recover.alarm_watch import AlarmWatch

FIRST, SECOND = (JoinRequest(str(Member(Server(pipeline, 0), 1)), 0) for pipeline in range(2))


def watch_of(store, looked=lambda _: None, alarmed=lambda _: None, **others):
    """A watch of a run whose store this is."""
    door = SimpleNamespace(board=lambda _: Board(store.clone(), "token"))
    return AlarmWatch(door, Durations(beat=0.05), looked, alarmed, **others)


class Behind(MemoryStore):
    """Gives others the time for something after it has counted."""

    look = staticmethod(lambda: None)

    def add(self, key, amount):
        found = super().add(key, amount)
        if amount:
            self.look()
        return found


def test_a_request_that_is_counted_and_not_stored_yet_is_seen_later():
    store, looks = Behind(), []
    watch = watch_of(store, looks.append)

    def look_twice():
        seen = len(looks)
        wait_until(lambda: len(looks) > seen + 1)

    watch.start()
    watch.follow(0)
    Board(store, "token").joining.request(FIRST)
    wait_until(lambda: watch.requests == (FIRST,))
    # The first of the two may have begun before.
    store.look = look_twice
    Board(store, "token").joining.request(SECOND)
    wait_until(lambda: watch.requests == (FIRST, SECOND))
    watch.stop()


def test_who_has_joined_from_elsewhere_hears_that_all_are_to_end_in_whichever_epoch():
    store = MemoryStore()
    watch, board = watch_of(store), Board(store, "token")
    told = []
    call_off = Cancellation(SimpleNamespace(number=15, name="SIGTERM"), told.append)
    here, elsewhere = Member(Server(0, 0), 0), Member(Server(1, 0), 1)

    board.verdicts.propose(Verdict(3, (str(here),), 7))
    call_off.tell_elsewhere(board, {here})
    assert not board.end.called_off()
    board.verdicts.propose(Verdict(4, (str(here), str(elsewhere)), 8))
    call_off.tell_elsewhere(board, {here})
    # Somebody dies before all have heard it.
    board.verdicts.propose(Verdict(5, (str(here), str(elsewhere)), 9))
    watch.start()
    watch.follow(5)
    call_off.tell_elsewhere(board, {here})
    wait_until(lambda: watch.told_to_end == "SIGTERM")
    watch.stop()
    assert not told

    process = subprocess.Popen(["sleep", "60"])
    for _ in range(2):
        call_off.tell_here([process.pid])
    assert process.wait() == -15
    assert [each.text.partition(":")[0] for each in told] == ["SIGTERM"]


def test_a_rank_says_why_it_is_where_it_is_before_it_is_freed_from_there():
    store, happened = MemoryStore(), []
    watch = watch_of(store, alarmed=happened.append)
    watch.start()
    network = SimpleNamespace(
        unblock=lambda: happened.append("freed"), view=SimpleNamespace(servers=()), line=NO_LINE, rank=SOLE
    )
    watch.follow(4, network)
    Board(store, "token").failures.raise_alarm(4, "standstill: here", "W0_0")
    wait_until(lambda: "freed" in happened)
    watch.stop()
    assert happened[:2] == ["standstill: here", "freed"]


@pytest.mark.parametrize("between", [False, True])
def test_who_may_wait_for_a_disk_says_so_when_it_hears_the_alarm(between):
    store, member, freed = MemoryStore(), Member(Server(0, 0), 0), threading.Event()
    watch, failures = watch_of(store, alarmed=lambda _: between), Board(store, "token").failures
    watch.start()
    view = View(4, (member,))
    watch.follow(4, SimpleNamespace(unblock=freed.set, view=view, server=member.server, line=NO_LINE, rank=SOLE))
    failures.raise_alarm(4, "W0_1 died", "W0_1")
    assert freed.wait(60)
    if between:
        wait_until(lambda: failures.is_between(4, member))
    watch.stop()
    assert failures.is_between(4, member) is between


def test_ranks_hear_where_they_stop_though_nothing_is_given_up_before_they_have_begun_it():
    """As on a device: an abort waits for what comes before, and that for other ranks."""
    store, happened = MemoryStore(), []
    watch = watch_of(store, ranks=2)
    heard = threading.Event()
    member = Member(Server(0, 0), 0)

    def give_up():
        heard.wait(120)
        happened.append("given up")

    def stop_at(place):
        happened.append(place)
        heard.set()

    own, other = Participant.all_of(member, 2)
    network = SimpleNamespace(
        unblock=give_up,
        view=SimpleNamespace(servers=(), member=lambda _: member),
        server=member.server,
        rank=own.rank,
        line=SimpleNamespace(close=lambda: 7, stop_at=stop_at),
    )
    failures = Board(store, "token").failures
    failures.tell_stop(4, other, 9)
    watch.start()
    watch.follow(4, network)
    failures.raise_alarm(4, "a transfer", "W0_0")
    wait_until(lambda: "given up" in happened and 9 in happened)
    watch.stop()
    assert happened[:2] == [9, "given up"]


@pytest.mark.parametrize("told", ["its death", "a view without it"])
def test_a_rank_does_not_wait_for_one_with_which_its_server_has_died(told):
    """Which says nothing of how far it was; the store tells the death until there is a view that has heard it."""
    store, happened = MemoryStore(), []
    watch, board = watch_of(store, ranks=2), Board(store, "token")
    member, other = Member(Server(0, 0), 0), Member(Server(1, 0), 0)
    network = SimpleNamespace(
        unblock=lambda: None,
        view=SimpleNamespace(servers=(), member=lambda _: member),
        server=member.server,
        rank=Participant.all_of(member, 2)[0].rank,
        line=SimpleNamespace(close=lambda: 7, give_up=lambda: happened.append("given up")),
    )
    watch.start()
    watch.follow(4, network)
    board.failures.raise_alarm(4, "a transfer", "W1_0")
    wait_until(lambda: watch.noticed)
    assert not happened
    if told == "its death":
        board.failures.publish_death(Death(str(member), "has lost rank 1", "agent", 0.0))
    else:
        board.verdicts.propose(Verdict(5, (str(other),), 9))
    wait_until(lambda: happened)
    watch.stop()
    assert happened == ["given up"]


def test_a_store_that_answers_and_takes_nothing_is_lost_until_it_works(monkeypatch):
    monkeypatch.setattr("recycle.control.membership.durations.Durations.rare_look", 0.05)
    store, refuses = MemoryStore(), []

    class Full(MemoryStore):
        def exchange(self, values, keys):
            if refuses:
                raise StoreLost("it is full")
            return super().exchange(values, keys)

    board = Board(store, "token")
    description = Description({}, paper_job())
    board.describe(description)
    watch = watch_of(Full(store._contents))
    watch.start()
    watch.follow(0)
    wait_until(lambda: keys.RUN in watch.probe.lasting)

    refuses.append(True)
    wait_until(lambda: str(watch.loss) == "it is full" and not watch.reaches)
    refuses.clear()
    wait_until(lambda: watch.reaches)

    store.delete(keys.RUN)
    wait_until(lambda: board.description() == description)
    watch.stop()


@pytest.mark.parametrize("left_out", [True, False])
def test_a_server_hears_that_the_others_have_gone_on_without_it_though_their_alarm_is_tidied_away(left_out):
    """As after its link was away: what it waits for in a group may never fail by itself."""
    store, freed, member, other = MemoryStore(), threading.Event(), *(Member(Server(each, 0), 0) for each in range(2))
    board, looked = Board(store, "token"), threading.Semaphore(0)
    board.verdicts.propose(Verdict(5, (str(other),) if left_out else (str(member), str(other)), 7))
    watch = watch_of(store, lambda _: looked.release())
    view = View(4, (member, other))
    watch.follow(4, SimpleNamespace(unblock=freed.set, view=view, server=member.server, line=NO_LINE, rank=SOLE))
    watch.start()
    if left_out:
        assert freed.wait(60)
        assert "gone on without W0_0" in watch.cause
    else:
        for _ in range(5):
            assert looked.acquire(timeout=60)
        assert not freed.is_set()
    watch.stop()


def test_a_joiner_hears_no_alarm_of_the_views_that_begin_without_it():
    store, looked = MemoryStore(), threading.Semaphore(0)
    Board(store, "token").verdicts.propose(Verdict(5, (str(Member(Server(0, 0), 0)),), 7))
    watch = watch_of(store, lambda _: looked.release())
    watch.follow(4)
    watch.start()
    for _ in range(5):
        assert looked.acquire(timeout=60)
    assert not watch.noticed
    watch.stop()
