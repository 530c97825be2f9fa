"""Whole views of bare members in threads, over a real store: who decides, and what it asks of each."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from harness.bare_members import TOKEN, BareMember, Cost
from harness.examples import paper_job
from recycle.control.board.board import Board
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.durations import Durations
from recycle.control.membership.events import Built, Decided, Died, Event, Halted, JoinReady, Noticed, Overdue, Paused
from recycle.control.membership.machine import Machine
from recycle.control.membership.messages import Death, Report, Verdict
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import SOLE, Member, ServerRank, View
from recycle.control.store.tcp_store import TorchStore, listen, serve
from recycle.runtime.errors import Interrupted
from recycle.runtime.recover.gathering import Gathering
from recycle.runtime.recover.store_connection import StoreConnection

# Nobody looks twice because a wait is over: whatever ends one was rung for.
PATIENT = Durations(beat=100.0, silence=1000.0, hang=1000.0, answer=1000.0, transfer=1000.0)
HURRIED = Durations(beat=0.05, silence=0.2, hang=0.2, rebuild=0.2, answer=0.2, transfer=0.3)


class Change:
    """One view change of a job with some stages, in which members die."""

    def __init__(self, store: TorchStore, pipelines: int, stages: int) -> None:
        self.job = paper_job(pipelines=pipelines, stages=stages, micro_batches=2)
        self.members = View.among(self.job.servers()).members
        self.verdict = Verdict(0, tuple(map(str, self.members)), 7)
        self.store = store
        self.board = Board(store, TOKEN)
        self.board.verdicts.propose(self.verdict)
        self.views: dict[Member, View] = {}
        self.costs: dict[Member, Cost] = {}

    def run(self, *dead: Member) -> None:
        left = [each for each in self.members if each not in dead]
        threads = [threading.Thread(target=self.survive, args=(each,), daemon=True) for each in left]
        for thread in threads:
            thread.start()
        for member in dead:
            self.board.declare_dead([Death(str(member), "was lost", "agent", time.monotonic())], "agent")
        for thread in threads:
            thread.join(120)
        assert set(self.views) == set(left)

    def gathering(self, member: Member, durations: Durations, rank: ServerRank = SOLE) -> Gathering:
        connection = SimpleNamespace(board=Board(self.store.clone(), TOKEN), durations=durations)
        return Gathering(member, cast("StoreConnection", connection), rank)

    def survive(self, member: Member) -> None:
        one = BareMember(member, self.job, self.store.clone(), PATIENT)
        one.begin()
        one.halt()
        self.costs[member] = one.change_view()
        self.views[member] = one.view


@pytest.fixture
def store() -> Iterator[TorchStore]:
    server = serve(listen())
    yield TorchStore(LOOPBACK, server.port)
    del server


@pytest.mark.parametrize("dead", [[5], [0], [0, 1], [0, 2], [1, 5], [3, 2, 1, 0]], ids=str)
def test_all_who_are_left_agree_without_waiting_for_any_time_to_be_over(store: TorchStore, dead: list[int]) -> None:
    change = Change(store, 4, 2)
    victims = [change.members[each] for each in dead]
    change.run(*victims)
    left = tuple(each for each in change.members if each not in victims)
    assert set(change.views.values()) == {View(1, left)}


def test_who_decided_and_died_before_all_have_heard_is_not_waited_for_again(store: TorchStore) -> None:
    change = Change(store, 2, 2)
    first, me = change.members[:2]
    change.board.verdicts.propose(Verdict(1, change.verdict.members, 7))
    death = Death(str(first), "was lost", "agent", 0.0)
    change.board.failures.publish_death(death)
    change.board.failures.tell_deaths(0, death)
    machine = Machine(me, change.job)
    machine.handle(Decided("begin", change.verdict))
    told = list(change.gathering(me, PATIENT).look(machine))
    assert [type(each) for each in told] == [Died, Decided]


def test_a_pause_to_which_somebody_does_not_come_ends_with_an_alarm_that_it_has_the_time_to_answer(
    store: TorchStore,
) -> None:
    change = Change(store, 2, 2)
    _, me, *_, late = change.members
    machine = Machine(me, change.job)
    gathering = change.gathering(me, HURRIED)
    for event in (
        Decided("begin", change.verdict),
        Built("built", 0),
        Paused("pause", 0, 7),
        Halted("halt", Report(str(me), 0, 7, 7)),
    ):
        machine.handle(event)
    for each in change.members[:-1]:
        change.board.failures.publish_report(Report(str(each), 0, 7, 7))
    told: list[Event] = []
    while not any(isinstance(each, Noticed) for each in told):
        told += gathering.look(machine)
    (noticed,) = (each for each in told if isinstance(each, Noticed))
    assert noticed.cause == f"a pause has waited for {late.server} for 0.3 s"
    assert machine.handle(noticed)
    # What was waited for in the pause does not count.
    assert not any(isinstance(each, Overdue) for each in gathering.look(machine))


def test_a_joiner_that_is_late_for_a_pause_has_longer_in_the_next_one(store: TorchStore) -> None:
    change = Change(store, 2, 2)
    me, joiner = change.members[0], Member.parse("W1_1#1")
    gathering = change.gathering(me, HURRIED)
    waited = []
    for epoch in range(5):
        began = time.monotonic()
        assert not list(gathering.hear_out(View(epoch, change.members[:-1]), lambda: [joiner]))
        waited.append(time.monotonic() - began)
    assert all(seconds >= least for seconds, least in zip(waited, (0.2, 0.4, 0.8, 0.8, 0.8), strict=True))
    change.board.failures.publish_report(Report(str(joiner), 5, 7, 7))
    (event,) = gathering.hear_out(View(5, change.members[:-1]), lambda: [joiner])
    assert isinstance(event, JoinReady)


@pytest.mark.parametrize("pipelines", [2, 12])
def test_what_is_asked_of_who_does_not_lead_does_not_grow_with_the_number_of_members(
    store: TorchStore, pipelines: int
) -> None:
    change = Change(store, pipelines, 2)
    change.run(change.members[-1])
    costs = [cost for member, cost in change.costs.items() if member != change.members[0]]
    # It hears the call, reports, and hears of the verdict: who proposed has looked for deaths for all.
    assert {cost.requests for cost in costs} == {3}
    # The verdict came without its members.
    assert max(cost.view for cost in costs) == 0
    assert max(cost.read for cost in costs) < 600


def two_ranks_waiting(store: TorchStore, hang: float) -> tuple[Board, Member, Gathering]:
    """A store's board, a member of two ranks that is dead, and one who waits for its end."""
    change = Change(store, 2, 2)
    dead, me = change.members[:2]
    durations = Durations(beat=0.05, silence=1000.0, hang=hang, answer=1000.0, transfer=1000.0)
    return change.board, dead, change.gathering(me, durations, ServerRank(0, 2))


def test_who_is_outwaited_has_all_its_ranks_gone(store: TorchStore) -> None:
    """Each is said to be gone when it was looked for in vain."""
    board, dead, gathering = two_ranks_waiting(store, 1000.0)
    said: list[Participant] = []
    left = list(Participant.all_of(dead, 2))

    def check() -> None:
        if left:
            said.append(left.pop(0))
            board.failures.tell_gone(said[-1])

    gathering.outwait([dead], check)
    assert said == list(Participant.all_of(dead, 2))
    # Once it is said, nobody looks again.
    gathering.outwait([dead, dead], lambda: None)


def test_who_cannot_be_outwaited_is_given_up(store: TorchStore) -> None:
    _, dead, gathering = two_ranks_waiting(store, 0.2)
    looks: list[None] = []
    gathering.outwait([dead], lambda: looks.append(None))
    assert looks


def test_an_alarm_ends_the_wait_for_the_dead(store: TorchStore) -> None:
    _, dead, gathering = two_ranks_waiting(store, 1000.0)

    def check() -> None:
        raise Interrupted("somebody else is gone")

    with pytest.raises(Interrupted):
        gathering.outwait([dead], check)
