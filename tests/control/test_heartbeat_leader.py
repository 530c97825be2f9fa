"""Speakers of several hosts, which share a store, and hear each other directly or not; time is told to them."""

import os
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import permutations
from typing import Any

import pytest

from harness.memory_store import MemoryStore
from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.host.direct_heartbeats import REACHED, REACHED_OFTEN, DirectHeartbeats
from recycle.control.host.heartbeat_leader import HeartbeatLeader
from recycle.control.host.neighbours import MOST_WATCHED, ring, watched
from recycle.control.host.signs import HostSocket, Sign
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Address, Alarm, Opening, Verdict
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, View
from recycle.control.store.etcd_store import BATCH
from recycle.control.store.sealed_store import SealedStore
from recycle.job import Server

TOKEN = "token"
BEAT = 0.5
DURATIONS = Durations(beat=BEAT, silence=3.0, hang=9.0)
HOSTS = 4
MEMBERS = tuple(Member(Server(pipeline, stage), 0) for pipeline in range(HOSTS) for stage in range(2))
BY_STAGE = tuple(sorted(MEMBERS, key=lambda each: each.server.stage))
EVERYBODY = tuple(map(Participant, MEMBERS))
PROCESS = os.getpid()
"""What any container may call an agent of its own."""


class Wires:
    """Between hosts that hail each other.

    Attributes:
        hosts: by their addresses.
        broken: from which number to which nothing comes through.
        loss: the share of all else that is lost.
    """

    def __init__(self) -> None:
        self.hosts: dict[Address, Host] = {}
        self.broken: set[tuple[int, int]] = set()
        self.loss = 0.0
        self._source = random.Random(0)

    def carry(self, sealed: bytes, sender: int, address: Address, now: float) -> bytes | None:
        host = self.hosts.get(address)
        if host is None or host.direct is None or not host.is_alive or not self._comes_through(sender, host.number):
            return None
        answer = host.direct.heartbeats.take(sealed, now)
        return answer if self._comes_through(host.number, sender) else None

    def _comes_through(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) not in self.broken and self._source.random() >= self.loss


class WiredSender:
    """A DirectHeartbeatSocket over wires."""

    def __init__(self, host: "Host", wires: Wires, *, spares: bool) -> None:
        self.heartbeats = DirectHeartbeats(host.name, TOKEN, DURATIONS.silence, spares=spares)
        self.address = (host.name, len(wires.hosts) + 1)
        self._host = host
        self._wires = wires
        wires.hosts[self.address] = host

    def call(self, now: float) -> None:
        for sealed, address in self.heartbeats.calls(now):
            answer = self._wires.carry(sealed, self._host.number, address, now)
            if answer is not None:
                self.heartbeats.take(answer, now)

    def close(self) -> None:
        del self._wires.hosts[self.address]


class Host:
    """A host with two servers, whose agents and workers give signs as long as they are among the living."""

    def __init__(
        self,
        number: int,
        store: MemoryStore,
        wires: Wires | None = None,
        *,
        spares: bool = True,
        members: Sequence[Member] = MEMBERS,
    ) -> None:
        self.number = number
        self._spares = spares
        self.name = f"host {number}"
        self.reaches_store, self.store_hangs = True, False
        self._wires = wires
        self.members = members[2 * number : 2 * number + 2]
        self.agents, self.workers = set(self.members), set(self.members)
        self.is_alive = True
        self.board = Board(store.clone(), TOKEN)
        self.socket = HostSocket(f"{TOKEN} of {self.name} in {PROCESS}")
        self._count = 0
        self.take_over()

    def take_over(self) -> None:
        """Another agent speaks."""
        # Another process has another address.
        self.direct = None if self._wires is None else WiredSender(self, self._wires, spares=self._spares)
        self.leader = HeartbeatLeader(self.socket, self.name, DURATIONS, 1, self.direct)

    def beat(self, now: float) -> None:
        if not self.is_alive:
            return
        self._count += 1
        for role, senders in (("agent", self.agents), ("worker", self.workers)):
            for member in senders:
                self.leader.note(Sign(str(member), PROCESS, role, self._count))  # type: ignore[arg-type]
        if self.reaches_store and not self.store_hangs:
            self.leader.look(self.board, now)
        if self.direct is not None:
            self.direct.call(now)

    def say_over(self, member: Member) -> None:
        self.agents.discard(member)
        self.workers.discard(member)
        self.leader.note(Sign(str(member), PROCESS, "agent", 0, over=True))

    def close(self) -> None:
        self.socket.close()


class Run:
    """Four hosts."""

    def __init__(self, store: MemoryStore, wires: Wires | None, *, spares: bool = True, by_stage: bool = False) -> None:
        self.now = 100.0
        members = BY_STAGE if by_stage else MEMBERS
        self.hosts = [Host(number, store, wires, spares=spares, members=members) for number in range(HOSTS)]
        self.board = Board(store, TOKEN)

    def go_on(self, seconds: float, attack: Callable[[], object] = lambda: None) -> None:
        """Let time pass; a stranger attacks right before each host's beat."""
        for _ in range(int(seconds / BEAT)):
            self.now += BEAT
            for host in self.hosts:
                attack()
                host.beat(self.now)

    def kill(self, numbers: Collection[int]) -> set[Member]:
        """Some hosts die at once; gives their members."""
        for number in numbers:
            self.hosts[number].is_alive = False
        return {member for number in numbers for member in self.hosts[number].members}

    def hang_store(self, hangs: bool) -> None:
        for host in self.hosts:
            host.store_hangs = hangs

    @property
    def dead(self) -> set[Member]:
        return {each for each in MEMBERS if self.board.failures.death(each) is not None}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def wires() -> Wires:
    return Wires()


@pytest.fixture(params=["they tell the store", "they hail each other", "they do both"])
def run(store: MemoryStore, wires: Wires, request: pytest.FixtureRequest) -> Iterator[Run]:
    wired = None if request.param == "they tell the store" else wires
    with closed_after(Run(store, wired, spares=request.param != "they do both")) as run:
        yield run


@pytest.fixture
def begun(run: Run) -> Run:
    return begin(run)


@pytest.fixture
def direct_run(store: MemoryStore, wires: Wires) -> Iterator[Run]:
    with closed_after(begin(Run(store, wires), 5)) as run:
        yield run


def begin(run: Run, seconds: float = 2) -> Run:
    run.board.verdicts.propose(Verdict(0, tuple(map(str, MEMBERS)), 0))
    run.go_on(seconds)
    return run


@contextmanager
def closed_after(run: Run) -> Iterator[Run]:
    yield run
    for host in run.hosts:
        host.close()


def require_missed(run: Run, number: int, seconds: float) -> None:
    """A host dies, and its servers are the only ones that are missed by then."""
    lost = run.kill({number})
    run.go_on(seconds)
    assert run.dead == lost


def test_a_host_that_dies_is_missed_with_all_its_servers_and_nobody_else_is(begun: Run) -> None:
    begun.go_on(20)
    assert begun.dead == set()
    begun.hosts[2].is_alive = False
    begun.go_on(2.5)
    assert begun.dead == set()
    begun.go_on(1.5)
    assert begun.dead == set(begun.hosts[2].members)
    death = begun.board.failures.death(begun.hosts[2].members[0])
    assert begun.board.failures.alarm(0) is not None
    assert (death.noticed, death.reason) == ("heartbeat", "has given no sign of life for 3.5 s")


@pytest.mark.parametrize("dead", [{0}, {0, 1}, {1, 2}, {0, 2}])
def test_hosts_that_die_together_are_all_missed(begun: Run, dead: Collection[int]) -> None:
    lost = begun.kill(dead)
    begun.go_on(5)
    assert begun.dead == lost


@pytest.mark.parametrize("dead", [{1, 2, 3}, {0, 1, 3}])
def test_who_hears_nobody_any_more_waits_longer_and_misses_all_in_the_end(begun: Run, dead: Collection[int]) -> None:
    lost = begun.kill(dead)
    begun.go_on(DURATIONS.doubt - BEAT)
    assert begun.dead == set()
    begun.go_on(8)
    assert begun.dead == lost


@pytest.mark.parametrize("dead", [{0, 1, 2}, {1, 2, 3}])
def test_no_pause_of_the_store_puts_off_the_end_of_the_doubt(begun: Run, dead: Collection[int]) -> None:
    lost = begun.kill(dead)
    for _ in range(4):
        begun.go_on(8)
        begun.hang_store(True)
        begun.go_on(2)
        begun.hang_store(False)
    assert begun.dead == lost


def test_a_view_that_changes_in_the_doubt_is_no_reason_to_be_sure(begun: Run) -> None:
    begun.go_on(10)
    begun.kill({1, 2, 3})
    begun.go_on(6)
    begun.board.verdicts.propose(Verdict(1, tuple(map(str, MEMBERS)), 0))
    begun.go_on(10)
    assert begun.dead == set()


def test_who_dies_longer_after_another_one_than_a_network_takes_to_end_is_missed_after_the_limit(begun: Run) -> None:
    begun.go_on(10)
    lost = begun.kill({1, 2})
    begun.go_on(DURATIONS.silence)
    lost |= begun.kill({3})
    begun.go_on(6)
    assert begun.dead == lost


@pytest.mark.parametrize("seconds", [3.5, 5, 8, 20])
@pytest.mark.parametrize("reaching", [(), (0,)], ids=["nobody reaches the store", "one host does"])
def test_a_network_that_is_away_for_a_while_is_nobodys_death(
    begun: Run, wires: Wires, reaching: Collection[int], seconds: float
) -> None:
    begun.go_on(20)
    wires.broken = set(permutations(range(HOSTS), 2))
    for host in begun.hosts:
        host.reaches_store = host.number in reaching
    begun.go_on(seconds)
    wires.broken = set()
    for host in begun.hosts:
        host.reaches_store = True
        begun.go_on(BEAT)
    begun.go_on(20)
    assert begun.dead == set()
    require_missed(begun, 2, 5)


@pytest.mark.parametrize("seconds", [3.5, 6.5, 12.5])
def test_who_comes_back_from_an_outage_when_tcp_tries_again_is_not_missed(
    begun: Run, wires: Wires, seconds: float
) -> None:
    """Its next attempt comes after as long again as all before it took."""
    begun.go_on(20)
    late = begun.hosts[1]
    wires.broken = set(permutations(range(HOSTS), 2))
    for host in begun.hosts:
        host.reaches_store = False
    begun.go_on(seconds)
    wires.broken = {pair for pair in wires.broken if late.number in pair}
    for host in begun.hosts:
        host.reaches_store = host is not late
    begun.go_on(seconds)
    wires.broken, late.reaches_store = set(), True
    begun.go_on(20)
    assert begun.dead == set()
    begun.go_on(20)
    require_missed(begun, 2, 5)


def test_the_last_hosts_of_a_stage_are_missed_later(store: MemoryStore) -> None:
    with closed_after(begin(Run(store, None, by_stage=True), 20)) as run:
        of_first_stage = run.kill({0, 1})
        run.go_on(DURATIONS.doubt - BEAT)
        assert run.dead == set()
        # A process that takes the place of one waits for so long until it is missed.
        run.go_on(DURATIONS.missed - DURATIONS.doubt)
        assert run.dead == of_first_stage


def test_of_two_hosts_of_a_stage_one_is_missed_as_soon_as_any_other(store: MemoryStore) -> None:
    with closed_after(begin(Run(store, None, by_stage=True), 20)) as run:
        require_missed(run, 1, 5)


def test_a_hung_worker_has_a_limit_of_its_own(begun: Run) -> None:
    victim = begun.hosts[1].members[1]
    begun.hosts[1].workers.discard(victim)
    begun.go_on(8.5)
    assert begun.dead == set()
    begun.go_on(1.5)
    assert begun.dead == {victim}


def test_an_agent_that_died_is_missed_by_who_speaks_for_its_host(begun: Run) -> None:
    victim = begun.hosts[1].members[1]
    begun.hosts[1].agents.discard(victim)
    begun.go_on(4)
    assert begun.dead == {victim}


@pytest.mark.parametrize("heard", [True, False])
def test_an_agent_that_only_waits_for_the_store_is_missed_after_as_long_as_a_network_may_be_away(
    begun: Run, heard: bool
) -> None:
    host, victim = begun.hosts[1], begun.hosts[1].members[1]
    host.agents.discard(victim)
    if not heard:
        host.take_over()
    with host.socket.door_of_agent(Participant(victim)).claim():
        begun.go_on(DURATIONS.doubt - 1)
        assert begun.dead == set()
        begun.go_on(2)
    assert begun.dead == {victim}


@pytest.mark.parametrize("role", ["agents", "workers"])
def test_a_silence_is_told_in_the_next_store_if_the_store_is_lost_at_that_moment(
    begun: Run, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = begun.hosts[1]
    getattr(host, role).discard(host.members[1])
    told = Board.declare_dead

    def lose(board: Board, *arguments: Any) -> None:
        monkeypatch.setattr(Board, "declare_dead", told)
        raise StoreLost("at that moment")

    monkeypatch.setattr(Board, "declare_dead", lose)
    with pytest.raises(StoreLost):
        begun.go_on(10)
    begun.go_on(10)
    assert begun.dead == {host.members[1]}


def test_an_agent_that_died_while_it_spoke_is_missed_by_the_next_one(begun: Run) -> None:
    victim = begun.hosts[1].members[0]
    begun.hosts[1].agents.discard(victim)
    begun.hosts[1].workers.discard(victim)
    begun.hosts[1].take_over()
    begun.go_on(2.5)
    assert begun.dead == set()
    begun.go_on(1.5)
    assert begun.dead == {victim}


def test_who_has_said_that_it_ends_is_not_missed(begun: Run) -> None:
    begun.hosts[1].say_over(begun.hosts[1].members[0])
    begun.go_on(20)
    assert begun.dead == set()


def test_who_is_not_heard_because_a_stranger_deletes_its_signs_is_not_dead(begun: Run, store: MemoryStore) -> None:
    begun.go_on(5)
    for _ in range(20):
        begun.go_on(BEAT)
        store.delete(keys.beat(begun.hosts[1].name))
        store.set(keys.beat(begun.hosts[2].name), b"garbage")
    assert begun.dead == set()
    begun.go_on(3 * DURATIONS.silence)  # as seldom as hosts tell the store that hear each other
    require_missed(begun, 1, 5)


def test_older_signs_that_a_stranger_puts_back_let_no_host_seem_dead_and_none_alive(
    begun: Run, store: MemoryStore
) -> None:
    key = keys.beat(begun.hosts[1].name)
    seen: list[bytes] = []
    for number in range(30):
        begun.go_on(BEAT)
        seen += [each for each in [store.get(key)] if each is not None and each not in seen]
        # The oldest one for longer than the limit, and then all in turn.
        if number > 2:
            store.set(key, seen[0 if number < 20 else number % len(seen)])
    assert begun.dead == set()
    begun.go_on(3 * DURATIONS.silence)  # as seldom as hosts tell the store that hear each other
    require_missed(begun, 1, 5)


@pytest.fixture(params=["they spare the store", "they do not"])
def hailing(store: MemoryStore, wires: Wires, request: pytest.FixtureRequest) -> Iterator[Run]:
    with closed_after(begin(Run(store, wires, spares=request.param == "they spare the store"), 5)) as run:
        yield run


@pytest.fixture
def asking(store: MemoryStore, wires: Wires) -> Iterator[Run]:
    """They hail each other, and look at the store in every beat."""
    with closed_after(begin(Run(store, wires, spares=False), 5)) as run:
        yield run


@pytest.mark.parametrize("attack", ["newest", "older", "deleted"])
def test_whose_signs_a_stranger_undoes_is_alive_as_long_as_it_answers(
    hailing: Run, store: MemoryStore, capsys: pytest.CaptureFixture[str], attack: str
) -> None:
    frozen = {key: found for key in (keys.beat(each.name) for each in hailing.hosts) if (found := store.get(key))}
    if attack == "older":
        hailing.go_on(5)

    def undo() -> None:
        store.delete_all(frozen.__contains__) if attack == "deleted" else store.set_many(frozen)

    hailing.go_on(60 * BEAT, undo)
    assert hailing.dead == set()
    told = capsys.readouterr().err.count("The host answers directly, and counts as alive")
    assert told in (0, HOSTS), "once each"
    hailing.hosts[1].is_alive = False
    hailing.go_on(5 * BEAT, undo)
    assert hailing.dead == set()
    hailing.go_on(3 * BEAT, undo)
    assert hailing.dead == set(hailing.hosts[1].members)


def test_whose_signs_a_stranger_deletes_before_any_host_has_read_one_has_to_answer_an_alarm(
    run: Run, store: MemoryStore
) -> None:
    run.board.verdicts.propose(Verdict(0, tuple(map(str, MEMBERS)), 0))
    delete = partial(store.delete, keys.beat(run.hosts[1].name))
    run.go_on(DURATIONS.doubt - 1, delete)
    assert run.board.failures.alarm(0) is None
    run.go_on(3, delete)
    assert run.board.failures.alarm(0) is not None
    run.board.verdicts.propose(Verdict(1, tuple(map(str, MEMBERS)), 0))
    run.go_on(2 * DURATIONS.doubt, delete)
    assert run.dead == set()
    assert run.board.failures.alarm(1) is None


def test_who_answers_and_does_not_reach_the_store_is_missed_soon_where_all_look_at_it(asking: Run) -> None:
    asking.hosts[2].reaches_store = False
    asking.go_on((1 + REACHED_OFTEN) * DURATIONS.silence + 2 * BEAT)
    assert asking.dead == set(asking.hosts[2].members)


@pytest.mark.parametrize("seconds", [2.0, 5.0, 30.0])
def test_while_a_store_hangs_that_all_look_at_nobody_is_missed_who_lives(asking: Run, seconds: float) -> None:
    for hangs in (True, False):
        asking.hang_store(hangs)
        asking.go_on(seconds)
    assert asking.dead == set()


def test_after_the_end_nobody_is_missed(begun: Run) -> None:
    for each in MEMBERS:
        begun.board.end.reach(View(0, MEMBERS), each)
    begun.hosts[1].agents.clear()
    begun.hosts[2].is_alive = False
    begun.go_on(20)
    assert begun.dead == set()


def test_in_a_view_without_a_host_the_next_one_is_watched(begun: Run) -> None:
    gone = begun.hosts[1]
    gone.is_alive = False
    begun.go_on(4)
    left = tuple(str(each) for each in MEMBERS if each not in gone.members)
    begun.board.verdicts.propose(Verdict(1, left, 0))
    begun.go_on(4)
    begun.hosts[2].is_alive = False
    begun.go_on(4)
    assert begun.dead == {*gone.members, *begun.hosts[2].members}
    assert begun.board.failures.alarm(1) is not None


def test_while_a_run_starts_only_those_are_missed_who_have_been_there(run: Run) -> None:
    run.board.verdicts.open(Opening(0, tuple(map(str, MEMBERS))))
    run.hosts[3].is_alive = False
    run.go_on(10)
    assert run.dead == set()
    run.hosts[2].is_alive = False
    run.go_on(10)
    assert run.dead == set(run.hosts[2].members)


def test_members_of_a_view_who_were_never_anywhere_have_to_answer_an_alarm(run: Run) -> None:
    run.board.verdicts.propose(Verdict(0, tuple(map(str, MEMBERS)), 0))
    run.hosts[3].is_alive = False
    run.go_on(4)
    assert run.board.failures.alarm(0) is None
    run.go_on(32)
    assert run.dead == set()
    assert str(run.hosts[3].members[0]) in run.board.failures.alarm(0).cause


def test_whose_host_a_stranger_deletes_is_not_dead(begun: Run, store: MemoryStore) -> None:
    left = tuple(map(str, MEMBERS[1:]))
    begun.board.verdicts.propose(Verdict(1, left, 0))
    begun.go_on(1)
    # Somebody joins, and all that was said of it is taken away again and again.
    begun.board.verdicts.propose(Verdict(2, tuple(map(str, MEMBERS)), 0))
    for _ in range(40):
        store.delete_all(lambda key: key.startswith("home/"))
        begun.go_on(0.5)
    assert begun.dead == set()


def test_who_is_heard_here_is_here_whatever_is_in_the_store(store: MemoryStore) -> None:
    host = Host(0, store)
    host.board.verdicts.propose(Verdict(0, tuple(map(str, host.members)), 0))
    for number in range(80):
        store.delete_all(lambda key: key.startswith("home/"))
        host.beat(number * BEAT)
    host.close()
    assert host.board.failures.alarm(0) is None


def test_in_another_store_everybody_says_again_where_it_is(begun: Run) -> None:
    empty = MemoryStore()
    for host in begun.hosts:
        host.board = Board(empty.clone(), TOKEN)
    begun.board = Board(empty, TOKEN)
    begun.board.verdicts.propose(Verdict(3, tuple(map(str, MEMBERS)), 0))
    begun.go_on(10)
    assert begun.dead == set()
    assert len(begun.board.beats.homes(EVERYBODY)) == len(MEMBERS)


def test_what_a_beat_asks_of_the_store_does_not_depend_on_how_many_there_are(begun: Run) -> None:
    counted = count(begun.hosts[0])
    begun.hosts[0].beat(begun.now + BEAT)
    assert counted == ["exchange"]


def count(host: Host) -> list[str]:
    """What it asks of the store from now on."""
    counted: list[str] = []
    store = host.board._sealed.plain
    for name in ("set", "set_many", "get", "get_many", "peek", "compare_set", "exchange"):
        own = getattr(store, name)
        setattr(store, name, lambda *given, name=name, own=own: (counted.append(name), own(*given))[1])
    return counted


def test_the_store_is_hardly_asked_while_all_hear_each_other(direct_run: Run) -> None:
    first, other = (count(direct_run.hosts[number]) for number in (0, 2))
    direct_run.go_on(24)
    # There it is seen that the run goes on.
    assert first == ["exchange"] * 48
    assert sorted(other) == ["exchange"] + ["peek"] * 11
    assert direct_run.dead == set()


@pytest.mark.parametrize("broken", [{(1, 2)}, {(2, 1)}, {(0, 2), (1, 2), (2, 0), (2, 1)}])
def test_whom_a_neighbour_does_not_hear_is_heard_of_in_the_store(
    direct_run: Run, wires: Wires, broken: set[tuple[int, int]]
) -> None:
    wires.broken |= broken
    direct_run.go_on(20)
    assert direct_run.dead == set()
    require_missed(direct_run, 2, 4)


@pytest.mark.parametrize("loss", [0.3, 0.6, 0.9])
def test_where_many_hails_are_lost_nobody_is_missed_who_lives(direct_run: Run, wires: Wires, loss: float) -> None:
    wires.loss = loss
    direct_run.go_on(300)
    assert direct_run.dead == set()
    require_missed(direct_run, 2, 4)


def test_who_does_not_reach_the_store_is_missed_though_it_is_alive(direct_run: Run) -> None:
    direct_run.hosts[2].reaches_store = False
    direct_run.go_on((REACHED + 1) * DURATIONS.silence + 2 * BEAT)
    assert direct_run.dead == set(direct_run.hosts[2].members)


def test_while_the_store_hangs_hosts_hear_each_other_and_miss_who_is_lost_then(direct_run: Run) -> None:
    """Its pause is nobody's silence, and delays the notice of nobody."""
    direct_run.hang_store(True)
    direct_run.hosts[2].is_alive = False
    direct_run.go_on(2.5)
    direct_run.hang_store(False)
    direct_run.go_on(1)
    assert direct_run.dead == set(direct_run.hosts[2].members)


def test_what_a_lost_host_told_the_store_last_does_not_make_it_live_longer(direct_run: Run) -> None:
    """The first host tells it in every beat, and who misses its answers finds that half the limit later."""
    first = direct_run.hosts[0]
    direct_run.go_on(10)
    direct_run.now += BEAT
    first.beat(direct_run.now)
    first.is_alive = False
    for host in direct_run.hosts[1:]:
        host.beat(direct_run.now)
    direct_run.go_on(DURATIONS.silence + BEAT)
    assert direct_run.dead == set(first.members)


@pytest.mark.parametrize("seconds", [2.5, 20])
def test_who_was_stopped_itself_accuses_nobody_whom_it_heard_directly(direct_run: Run, seconds: float) -> None:
    direct_run.now += seconds
    direct_run.go_on(10)
    assert direct_run.dead == set()


def test_a_host_tells_the_store_while_somebody_here_is_in_no_view(direct_run: Run) -> None:
    host, joiner = direct_run.hosts[2], Member(MEMBERS[-1].server, 1)
    host.agents.add(joiner)
    counted = count(host)
    direct_run.go_on(3)
    assert counted.count("exchange") == 6
    direct_run.board.verdicts.propose(Verdict(1, (*map(str, MEMBERS[:-1]), str(joiner)), 0))
    direct_run.go_on(3)
    counted.clear()
    direct_run.go_on(3)
    assert counted.count("exchange") <= 1


def test_who_speaks_next_is_hailed_where_it_answers(direct_run: Run) -> None:
    host = direct_run.hosts[2]
    host.leader.leave()
    host.take_over()
    direct_run.go_on(5)
    counted = count(host)
    direct_run.go_on(6)
    assert direct_run.dead == set()
    assert counted.count("exchange") <= 1


def test_members_are_called_to_an_alarm_whose_raiser_died_before_it_could_call(begun: Run, store: MemoryStore) -> None:
    board = Board(store.clone(), TOKEN)
    SealedStore(store, TOKEN).write_once(keys.alarm(0), Alarm(0, "W0_0#0", "it is broken"))
    assert board.failures.wait_call(0, 0.0) == (False, None)
    begun.go_on(BEAT)
    assert board.failures.wait_call(0, 0.0) == (True, Alarm(0, "W0_0#0", "it is broken"))


def test_every_host_is_watched_by_the_two_before_that_live() -> None:
    hosts = ring(EVERYBODY, {each: f"{place % 3}" for place, each in enumerate(EVERYBODY)})
    assert hosts == ("0", "1", "2")
    assert watched(hosts, "0", ()) == ("1", "2")
    assert watched(hosts, "2", ()) == ("0", "1")
    assert watched(hosts, "0", {"1"}) == ("2",)
    assert watched(hosts, "another", ()) == ("0", "1")
    assert watched((), "0", ()) == ()


def test_no_host_watches_more_than_one_request_to_etcd_asks_for() -> None:
    hosts = tuple(map(str, range(1000)))
    assert len(watched(hosts, "0", (), suspects=500)) == MOST_WATCHED
    # With its own sign, the newest verdict, an alarm and what was called.
    assert MOST_WATCHED + 4 <= BATCH


@pytest.mark.parametrize(("lost", "silences"), [(1, 1), (2, 1), (3, 2), (8, 2), (26, 3), (64, 4)])
def test_a_rack_of_neighbours_is_missed_in_a_few_silences(lost: int, silences: int) -> None:
    hosts = tuple(map(str, range(80)))
    dead, gone = set(hosts[1 : 1 + lost]), set[str]()
    for _ in range(silences):
        assert gone < dead
        gone |= dead.intersection(watched(hosts, "0", gone))
    assert gone == dead


def test_the_silence_of_one_rank_is_the_death_of_its_server(store: MemoryStore) -> None:
    member = MEMBERS[0]
    board = Board(store, TOKEN)
    board.verdicts.propose(Verdict(0, (str(member),), 0))
    socket = HostSocket(f"{TOKEN} of two ranks")
    leader = HeartbeatLeader(socket, "host", DURATIONS, 2)

    def beat(number: int, *ranks: int) -> None:
        for rank in ranks:
            leader.note(Sign(str(member), PROCESS + rank, "agent", number, rank=rank))
        leader.look(board, number * BEAT)

    for number in range(1, 20):
        beat(number, 0, 1)
    assert board.failures.death(member) is None
    for number in range(20, 30):
        beat(number, 1)
    assert board.failures.death(member) is not None
    socket.close()
