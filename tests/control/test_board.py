import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from harness.bare_members import CountingStore
from harness.examples import paper_job
from harness.memory_store import MemoryStore
from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.board.heartbeat_board import Beat
from recycle.control.membership.errors import ControlError
from recycle.control.membership.messages import Alarm, Death, Description, JoinRequest, Opening, Report, Verdict
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, View
from recycle.control.store.log import LogReader
from recycle.control.store.sealed_store import SealedStore
from recycle.control.store.store import Store
from recycle.job import Server

TOKEN = "token"
A, B, C = (Member.parse(name) for name in ("W0_0#0", "W0_1#0", "W1_1#1"))


@pytest.fixture
def board(store: Store) -> Board:
    return Board(store, TOKEN)


def verdict(epoch: int, step: int = 0, *members: Member) -> Verdict:
    return Verdict(epoch, tuple(str(member) for member in members or (A, B)), step)


def read(board: Board, epoch: int) -> list[Report | Death]:
    return list(LogReader(board.failures.log(epoch)).news())


def test_what_is_written_is_read_by_another_connection(store: Store, board: Board) -> None:
    other = Board(store.clone(), TOKEN)
    report, death = Report(str(A), 2, 5, 4, 3), Death(str(B), "died", "agent", 1.0)
    assert (other.failures.death(B), other.failures.alarm(2), other.plans.find(2, A)) == (None,) * 3
    assert read(other, 2) == []
    board.failures.publish_report(report)
    board.failures.publish_death(death)
    board.failures.tell_deaths(2, death)
    board.failures.raise_alarm(2, "cause", "source")
    board.plans.publish(2, A, b"\0plan\xff")
    assert read(other, 2) == [report, death]
    assert read(other, 1) == []
    assert other.failures.death(B) == death
    assert other.failures.alarm(2) == Alarm(2, "source", "cause")
    assert other.plans.find(2, A) == b"\0plan\xff"
    assert other.plans.find(2, B) is None


def test_a_death_is_told_in_every_epoch_that_still_has_the_dead(board: Board) -> None:
    death = Death(str(B), "died", "agent", 1.0)
    board.verdicts.open(Opening(0, (str(A), str(B))))
    board.declare_dead([death], "agent")
    assert read(board, -1) == [death]
    board.verdicts.propose(verdict(0, 0, A, B))
    board.declare_dead([Death(str(B), "died again", "answer", 2.0)], "another")
    assert read(board, 0) == [death]
    assert board.failures.alarm(0) == Alarm(0, "another", f"{B} died")
    board.verdicts.propose(verdict(1, 0, A))
    board.declare_dead([death], "agent")
    assert (read(board, 1), board.failures.alarm(1)) == ([], None)


def test_the_deaths_of_a_host_are_all_told_before_the_alarm_is_raised(store: Store, board: Board, monkeypatch) -> None:
    board.verdicts.propose(verdict(0, 0, A, B, C))
    deaths, told = [Death(str(each), "was lost", "heartbeat", 1.0) for each in (A, C)], []
    write_once = SealedStore.write_once

    def look(sealed, key, content):
        if isinstance(content, Alarm):
            told.extend(read(board, 0))
        return write_once(sealed, key, content)

    monkeypatch.setattr(SealedStore, "write_once", look)
    board.declare_dead(deaths, "host h")
    assert told == deaths
    assert [board.failures.death(each) for each in (A, B, C)] == [deaths[0], None, deaths[1]]


def test_the_deaths_of_a_host_take_no_more_requests_than_one_and_the_first_reason_stays(store: Store) -> None:
    everybody = [Member(Server(0, stage), 0) for stage in range(8)]
    asked = []
    for epoch, dead in enumerate(([A], everybody)):
        counting = CountingStore(store.clone())
        board = Board(counting, TOKEN)
        board.verdicts.propose(verdict(epoch, 0, *everybody))
        counting.clear()
        board.declare_dead([Death(str(each), f"died in {epoch}", "heartbeat", 1.0) for each in dead], "host h")
        asked.append(counting.requests)
    assert asked[0] == asked[1]
    found = [board.failures.death(each) for each in everybody]
    assert [each.reason for each in found if each is not None] == ["died in 0"] + ["died in 1"] * 7


def test_who_waits_for_a_leader_that_began_an_epoch_and_died_is_woken(store: Store, board: Board) -> None:
    board.verdicts.propose(verdict(1, 0, A, B))
    board.declare_dead([Death(str(A), "died", "agent", 1.0)], "agent")
    assert store.get_many(["epoch/0/bells/W0_0#0", "epoch/1/bells/W0_0#0"]) == [b"", b""]


def test_what_the_proposer_of_a_view_has_not_heard_is_found_by_its_members(board: Board) -> None:
    early, late, outside, joiner = (Death(str(each), "died", "agent", 1.0) for each in (A, B, Member(B.server, 7), C))
    board.failures.tell_deaths(3, early)
    board.failures.tell_deaths(3, late)
    board.failures.tell_deaths(3, outside)
    board.failures.publish_death(joiner)
    numbers = [number for number, _ in board.failures.log(3).read().found]
    proposed = Verdict(4, (str(A), str(B), str(C)), 0, joined=(str(C),), heard=numbers[0])
    assert board.failures.unheard(proposed) == (late, joiner)
    assert board.failures.unheard(Verdict(4, (str(A), str(B)), 0, heard=numbers[2])) == ()


def test_all_leave_together_when_the_last_one_has_reached_the_end(store: Store, board: Board) -> None:
    view = View(2, (A, B))
    board.end.reach(view, A)
    assert not board.end.wait(view, 0.01)
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(Board(store.clone(), TOKEN).end.wait, view, 120)
        Board(store.clone(), TOKEN).end.reach(view, B)
        assert waited.result()
    assert not board.end.is_reached(View(3, (A, B)))


def test_until_all_know_of_the_end_who_leaves_puts_back_what_a_stranger_takes_away_of_it(
    store: Store, board: Board
) -> None:
    view, other = View(2, (A, B)), Board(store.clone(), TOKEN)
    other.end.reach(view, B)
    board.end.reach(view, A)
    store.delete(keys.finished(2, A))
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(board.end.linger, view, A)
        assert any(other.end.wait(view, 0.05) for _ in range(100))
        other.end.linger(view, B)
        leaving.result()
    assert store.get(keys.finished(2, A)) is not None


def test_the_end_is_reached_though_nobody_rang_for_it(store: Store, board: Board) -> None:
    board.end.reach(View(2, (A,)), A)
    store.delete("epoch/2/end")
    assert board.end.is_reached(View(2, (A,)))


def test_the_first_alarm_death_and_description_stay(board: Board) -> None:
    board.failures.raise_alarm(1, "first", "a")
    assert board.failures.raise_alarm(1, "second", "b").cause == "first"
    board.failures.publish_death(Death(str(A), "first", "agent", 1.0))
    assert board.failures.publish_death(Death(str(A), "second", "answer", 2.0)).reason == "first"
    first = Description({"model": "a"}, paper_job())
    assert (
        board.describe(first)
        == board.describe(Description({"model": "b"}, paper_job()))
        == board.description()
        == first
    )


def test_a_verdict_that_is_read_again_is_the_same_object_until_there_is_another(store: Store, board: Board) -> None:
    assert board.verdicts.newest() is None
    other = Board(store.clone(), TOKEN)
    other.verdicts.propose(verdict(0))
    first = board.verdicts.newest()
    assert first is not None
    assert board.verdicts.newest() is first
    other.verdicts.propose(verdict(1))
    assert board.verdicts.newest() == verdict(1)
    assert board.verdicts.newest(2) is None


def test_an_epoch_has_one_verdict_however_late_one_proposes(board: Board) -> None:
    assert board.verdicts.newest() is None
    assert board.verdicts.propose(verdict(0)) == verdict(0)
    assert board.verdicts.propose(verdict(1, 5)) == verdict(1, 5)
    assert board.verdicts.propose(verdict(1, 6)) == verdict(1, 5)
    assert board.verdicts.propose(verdict(2, 7)) == verdict(2, 7)
    board.forget(2, [A, B])
    assert board.verdicts.propose(verdict(1, 6)) == verdict(2, 7)
    assert board.verdicts.newest(1) == board.verdicts.newest() == verdict(2, 7)
    assert board.verdicts.newest(3) is None


def test_a_run_is_opened_once_and_waited_for(store: Store, board: Board) -> None:
    assert board.verdicts.opening() is board.verdicts.opening(0.01) is None
    opening = Opening(4, (str(A), str(B)), "checkpoint")
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(Board(store.clone(), TOKEN).verdicts.opening, 120)
        assert board.verdicts.open(opening) == opening
        assert waited.result() == opening
    assert board.verdicts.open(Opening(0, (str(C),))) == opening
    assert (opening.view.epoch, opening.view.members) == (3, (A, B))


def test_of_many_who_propose_one_wins_and_all_are_told(store: Store, board: Board) -> None:
    board.verdicts.propose(verdict(0))
    barrier = threading.Barrier(8)

    def propose(step: int) -> Verdict:
        connection = Board(store.clone(), TOKEN)
        barrier.wait()
        return connection.verdicts.propose(verdict(1, step))

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(propose, range(8)))
    assert all(each == board.verdicts.newest() for each in told)


@pytest.mark.parametrize("caller", ["alarm", "joiner"])
def test_an_alarm_and_a_joiner_end_the_wait_for_a_call(store: Store, board: Board, caller: str) -> None:
    assert board.failures.wait_call(2, 0.01) == (False, None)
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(Board(store.clone(), TOKEN).failures.wait_call, 2, 120)
        if caller == "alarm":
            board.failures.raise_alarm(2, "cause", "source")
        else:
            board.joining.request(JoinRequest("W0_0#1", 2, 1, "asking"))
        alarm = Alarm(2, "source", "cause") if caller == "alarm" else None
        assert called.result() == (True, alarm)
    assert board.failures.alarm(2) == alarm
    assert board.failures.wait_call(3, 0.01) == (False, None)


def test_what_was_heard_of_when_a_verdict_was_stored_is_not_stored_again(board: Board) -> None:
    told = replace(verdict(3), unheard=(Death(str(A), "died", "agent", 0.0),))
    assert board.verdicts.propose(told) == verdict(3)


def test_waiting_ends_with_the_alarm_and_with_the_verdict(store: Store, board: Board) -> None:
    assert board.failures.wait_alarm(0, 0.01) is None
    assert board.verdicts.wait(0, 0.01) is None
    with ThreadPoolExecutor(2) as pool:
        alarm = pool.submit(Board(store.clone(), TOKEN).failures.wait_alarm, 0, 120)
        decided = pool.submit(Board(store.clone(), TOKEN).verdicts.wait, 0, 120)
        time.sleep(0.05)
        board.failures.raise_alarm(0, "cause", "source")
        board.verdicts.propose(verdict(0))
        assert alarm.result().cause == "cause"
        assert decided.result() == verdict(0)


def test_a_verdict_comes_with_its_turn_to_who_has_the_one_before(store: Store, board: Board) -> None:
    reader, latecomer = Board(store.clone(), TOKEN), Board(store.clone(), TOKEN)
    board.verdicts.propose(verdict(0))
    assert reader.verdicts.newest() == verdict(0)
    stored = board.verdicts.propose(Verdict(1, (str(A),), 3, deaths=(Death(str(B), "died", "agent", 0.0),)))
    late = Death(str(A), "died", "agent", 0.0)
    board.verdicts.ring(0, [A], replace(stored, unheard=(late,)))
    came = reader.verdicts.await_turn(0, A, 120)
    assert came == replace(stored, unheard=(late,))
    # Nobody has told it but who rang.
    assert reader.failures.unheard(came) == (late,)
    assert reader.failures.unheard(stored) == ()
    assert reader.verdicts.newest() == stored
    assert latecomer.verdicts.await_turn(0, A, 120) is None
    board.verdicts.ring(0, [A])
    assert reader.verdicts.await_turn(0, A, 120) is None


def test_a_verdict_is_found_though_nobody_rang_for_it(store: Store, board: Board) -> None:
    board.verdicts.propose(verdict(0))
    store.delete("epoch/0/bells/verdict")
    assert board.verdicts.wait(0, 120) == verdict(0)


def test_that_a_rank_is_gone_is_waited_for_and_kept_until_its_server_has_another_life(
    store: Store, board: Board
) -> None:
    first, second = Participant.all_of(A, 2)
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(Board(store.clone(), TOKEN).failures.wait_gone, first, 120)
        board.failures.tell_gone(first)
        assert waited.result()
    assert not board.failures.wait_gone(second, 0.01)
    Board(store.clone(), "another token").failures.tell_gone(second)
    assert not board.failures.wait_gone(second, 0.01)
    board.verdicts.propose(verdict(1))
    board.forget(1, (B,))
    assert board.failures.wait_gone(first, 0.01)
    board.forget(1, (Member(A.server, A.incarnation + 1), B))
    assert not board.failures.wait_gone(first, 0.01)


def test_the_death_of_a_life_that_is_still_to_ask_is_known_until_its_server_has_another_one(
    store: Store, board: Board
) -> None:
    """One rank of a server may die while the others, which look later, still set up."""
    returning, later = (Member(A.server, A.incarnation + more) for more in (1, 2))
    board.failures.publish_death(Death(str(returning), "died", "agent", 0.0))
    board.verdicts.propose(verdict(1))
    for members in ((B,), (A, B), (returning, B)):
        board.forget(1, members)
        assert board.failures.death(returning) is not None
    board.forget(1, (later, B))
    assert board.failures.death(returning) is None


def test_the_number_of_the_newest_verdict_is_told_and_told_again_by_who_tidies(store: Store, board: Board) -> None:
    assert board.verdicts.number() is None
    board.verdicts.propose(verdict(0))
    assert board.verdicts.number() == 0
    board.verdicts.propose(verdict(1))
    # Who proposed may have slept before it told it.
    board.verdicts.announce(0)
    board.forget(1, (A, B))
    assert board.verdicts.number() == 1


def test_every_life_of_a_server_has_its_own_number(store: Store, board: Board) -> None:
    with ThreadPoolExecutor(4) as pool:
        lives = list(pool.map(lambda _: Board(store.clone(), TOKEN).joining.new_incarnation(Server(1, 2)), range(8)))
    assert sorted(lives) == list(range(1, 9))
    assert board.joining.new_incarnation(Server(1, 3)) == 1


def test_a_server_that_nobody_else_brings_back_comes_before_one_that_is_on_its_way(store: Store, board: Board) -> None:
    joining, (first, second) = board.joining, (Server(1, 0), Server(1, 1))
    board.verdicts.propose(verdict(0, 0, A, B, Member(first, 0), Member(second, 0)))
    for each in first, second:
        board.failures.publish_death(Death(str(Member(each, 0)), "died", "agent", 0.0))
    # The second one is started again by its agent, and that life crashes.
    crashed = joining.next_life(Member(second, 0))
    came = joining.come([first, second])
    assert came == Member(first, 1)
    assert joining.come([first]) > came
    board.failures.publish_death(Death(str(crashed), "died", "agent", 0.0))
    assert joining.come([first, second]) == Member(second, 2)
    # In the view, it is on its way no more, and may die and come again.
    board.verdicts.propose(verdict(1, 0, A, B, Member(first, 2), Member(second, 2)))
    assert joining.come([second, first]) == Member(second, 3)


def test_servers_that_are_brought_back_at_the_same_moment_are_different_ones(board: Board, monkeypatch) -> None:
    vacant = [Server(1, stage) for stage in range(3)]
    board.verdicts.propose(verdict(0))
    # Each looks before any of the others has its number.
    monkeypatch.setattr(SealedStore, "counted", lambda *_: 0)
    assert [board.joining.come(vacant).server for _ in vacant] == vacant
    monkeypatch.undo()
    # Nothing comes of the numbers with which they have made way, once those before them are in the view.
    joined = [Member(each, 1) for each in vacant]
    board.verdicts.propose(verdict(1, 0, A, B, *joined))
    for each in joined:
        board.failures.publish_death(Death(str(each), "died", "agent", 0.0))
    assert [board.joining.come(vacant).server for _ in vacant] == vacant


def test_a_life_that_has_given_up_is_on_its_way_no_more(board: Board) -> None:
    first, second = Server(1, 0), Server(1, 1)
    board.verdicts.propose(verdict(0))
    board.joining.withdraw(board.joining.come([first]))
    assert board.joining.come([first, second]) == Member(first, 2)


def test_the_number_of_a_living_member_is_kept_in_a_new_store_and_none_is_left_out(board: Board) -> None:
    for _ in range(2):
        board.joining.keep_count(Member(A.server, 3))
    assert board.joining.new_incarnation(A.server) == 4


def test_a_store_that_has_counted_no_lives_gives_none_again(store: Store) -> None:
    board = Board(store, TOKEN)
    living = Member(Server(1, 2), 3)
    board.verdicts.propose(Verdict(7, (str(living),), 0))
    assert board.joining.new_incarnation(living.server) == 4
    assert board.joining.next_life(Member(Server(1, 3), 2)) == Member(Server(1, 3), 3)


def test_what_lasts_is_found_by_a_probe_and_told_again_to_a_store_that_lacks_it(store: Store) -> None:
    board = Board(store, TOKEN)
    assert board.probe() == {}
    board.describe(Description({}, paper_job()))
    lasting = board.probe()
    assert lasting.keys() == {keys.RUN}
    store.delete(keys.RUN)
    board.tell_again(lasting)
    assert board.description() == Description({}, paper_job())


def test_requests_to_join_are_listed_and_foreign_ones_are_not(store: Store, board: Board) -> None:
    board.joining.request(JoinRequest(str(C), 4))
    Board(store.clone(), "another token").joining.request(JoinRequest("W1_0#1", 4))
    assert board.joining.requests(4) == (JoinRequest(str(C), 4),)
    assert board.joining.requests(3) == ()
    board.joining.request(JoinRequest(str(C), 4, 2, "synced"))
    assert [(request.attempt, request.state) for request in board.joining.requests(4)] == [(2, "synced")]


def test_who_lacks_the_token_is_not_believed(store: Store, board: Board) -> None:
    board.verdicts.propose(verdict(0))
    board.describe(Description({}, paper_job()))
    assert board.verdicts.newest() == verdict(0)
    stranger = Board(store.clone(), "another token")
    assert stranger.verdicts.newest() is None
    with pytest.raises(ControlError, match="was not made with this run's token"):
        stranger.description()
    stranger.verdicts.propose(verdict(7, 5, C))
    stranger.failures.publish_report(Report(str(A), 0, 5, 5))
    assert board.verdicts.newest() == verdict(0)
    assert read(board, 0) == []
    # What was there before is replaced where it has to be right.
    assert board.verdicts.propose(verdict(1, 5, C)) == verdict(1, 5, C)
    assert board.verdicts.newest(1) == verdict(1, 5, C)


def test_garbage_in_every_place_counts_as_nothing_there(
    store: Store, board: Board, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in ("view", "opening", "run", f"death/{A}", f"beat/{A}", "epoch/0/alarm", f"epoch/0/plan/{A}"):
        store.set(key, b"garbage")
    assert board.verdicts.newest() is None
    assert board.verdicts.opening() is None
    assert board.failures.wait_alarm(0, 0.2) is None
    assert board.failures.death(A) is None
    assert board.plans.find(0, A) is None
    assert board.beats.counts([A]) == {A: 0}
    assert capsys.readouterr().err.count("recycle: a stranger writes to the store, and is ignored") == 1
    death = Death(str(A), "died", "agent", 0.0)
    assert board.failures.publish_death(death) == board.failures.death(A) == death
    assert board.failures.raise_alarm(0, "it died", "agent") == board.failures.alarm(0)
    assert board.describe(Description({}, paper_job())) == board.description()


def test_the_store_does_not_grow_with_the_number_of_epochs() -> None:
    store = MemoryStore()
    board = Board(store, TOKEN)
    sizes = []
    for epoch in range(5):
        gone, lives = Member(Server(1, 1), epoch), (A, B, Member(Server(1, 1), epoch + 1))
        board.verdicts.propose(verdict(epoch, epoch, *lives))
        store.set(f"epoch/{epoch}/tensor/0/all/0", b"an address")
        for member in (gone, *lives):
            board.beats.settle(Participant(member), f"host of {member}")
            board.beats.glance(f"host of {member}", Beat(1))
            board.failures.publish_report(Report(str(member), epoch, epoch, epoch))
            board.joining.request(JoinRequest("W1_0#1", epoch))
        death = Death(str(gone), "died", "agent", 0.0)
        board.failures.publish_death(death)
        board.failures.tell_deaths(epoch, death)
        board.failures.raise_alarm(epoch, "cause", "source")
        board.plans.publish(epoch, A, b"plan")
        for each in lives:
            board.end.reach(View(epoch, lives), each)
        board.forget(epoch, lives)
        sizes.append(len(store.keys))
        assert len(read(board, epoch)) == 5
        assert read(board, epoch - 1) == []
        assert board.failures.death(gone) is None
        assert board.beats.counts([A])[A] == 1
    assert len(set(sizes)) == 1


def test_who_tidies_too_late_deletes_nothing() -> None:
    store = MemoryStore()
    board = Board(store, TOKEN)
    board.verdicts.propose(verdict(5))
    board.failures.publish_death(Death(str(C), "died", "agent", 0.0))
    before = store.keys
    board.forget(4, (A, B))
    assert store.keys == before


def test_an_epoch_that_is_no_number_is_left_alone() -> None:
    store = MemoryStore()
    store.set("epoch/many/x", b"")
    Board(store, TOKEN).forget(9, ())
    assert "epoch/many/x" in store.keys
