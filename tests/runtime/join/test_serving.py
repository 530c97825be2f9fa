"""A joiner is served and follows a small stage that is trained, over real groups and a real store."""

import gc
import threading
import time
import weakref
from pathlib import Path

import msgspec
import pytest
import torch

from harness.started import wait_until
from recycle.control.board.board import Board
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import Death, JoinRequest
from recycle.control.membership.view import Member, View
from recycle.control.store.tcp_store import listen, serve
from recycle.job import Server
from recycle.runtime.join.following import ATTEMPTS, Follower, Joining
from recycle.runtime.join.serving import Meeting, Service, Serving, server_of
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.step.checkpoint import give_state, stage_state
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.update import TorchUpdate
from recycle.threads import NoneLeft

JOINER = Member(Server(1, 0), 3)
PEER = Member(Server(0, 0), 0)
VIEW = View(4, (PEER, Member(Server(0, 1), 0), Member(Server(1, 1), 0)))
DURATIONS = Durations(beat=0.05, rebuild=25.0)
MORE = Member(Server(2, 0), 0)


class Stage:
    """What serving needs of a Followable: a real optimizer, whose gradients come from nowhere."""

    def __init__(self, seed, size=64, pause=0.0):
        torch.manual_seed(seed)
        self.module = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.LayerNorm(size))
        self.update = TorchUpdate(
            MainParameters(self.module.parameters()),
            lambda each: torch.optim.AdamW(each, lr=0.01),
            2,
            [0],
            2,
            Method(keep=True),
        )
        self.pause = pause

    @property
    def newest(self):
        return self.update.versions.newest

    def state(self):
        return stage_state(self.update.main.named(self.module), self.update.optimizer)

    def adopt(self, step, state):
        give_state(state, self.update.main.named(self.module), self.update.optimizer)
        self.update.adopt(step)

    def listen(self, listener):
        self.update.feed.listener = listener

    def follow(self, parts):
        time.sleep(self.pause)
        self.update.follow(parts)

    def train(self, steps):
        for _ in range(steps):
            for buffer in self.update.sums.collected.buffers:
                buffer.normal_()
            self.update.step(0, last=True)

    def content(self):
        return {name: each.clone() for name, each in self.state().items()}


@pytest.fixture(scope="module")
def door():
    server = serve(listen())
    yield Endpoint("127.0.0.1", server.port, "secret")
    del server


@pytest.fixture
def board(door):
    board = Board(door.connect(), door.token)
    # What other tests have left there is of earlier lives.
    board.forget(1 << 30, [Member(each.server, 1 << 30) for each in (JOINER, MORE, *VIEW.members)])
    return board


@pytest.fixture
def meeting(door, board):
    return Meeting(door, DURATIONS, 4, JOINER, 1)


def request(attempt=1):
    return JoinRequest(str(JOINER), 4, attempt)


def begin(stage, door, board, **durations):
    """A joiner that has asked to be let in."""
    joining = Joining(JOINER, stage, door, msgspec.structs.replace(DURATIONS, **durations))
    joining.begin(VIEW, board)
    return joining


def is_ready(board):
    return any(each.state == "synced" for each in board.joining.requests(VIEW.epoch))


def assert_equal(one, other):
    assert one.newest == other.newest
    assert_equal_content(one.content(), other.content())


def assert_equal_content(one, other):
    assert one.keys() == other.keys()
    for name, each in one.items():
        assert torch.equal(each, other[name]), name


def require_arrival(serving, joining, board, peer, joiner):
    """What is served arrives, and is what the peer has."""
    serving.finish()
    while not joining.ready:
        joining.wait(board)
    assert joining.arrived
    assert_equal(peer, joiner)


@pytest.mark.parametrize("before", [0, 4])
def test_a_joiner_follows_to_the_bit_however_many_steps_are_made_while_it_copies(board, meeting, before):
    peer, joiner = Stage(1), Stage(2)
    peer.train(before)
    service = Service(meeting, peer.newest, peer.state())
    peer.listen(service)
    peer.train(5)
    follower = Follower(meeting, joiner, request())
    wait_until(lambda: is_ready(board))
    peer.train(3)
    peer.listen(None)
    service.finish()
    peer_then = peer.content()
    peer.train(2)  # after the pause nobody follows any more
    assert follower.wait(120)
    assert follower.arrived
    assert joiner.newest == before + 8
    assert any(name.startswith("optimizer/exp_avg_sq/") for name in peer_then)
    assert_equal_content(joiner.content(), peer_then)


def test_a_joiner_that_is_too_slow_is_given_up_and_the_training_never_waits(meeting):
    peer, joiner = Stage(1), Stage(2, pause=3600)
    service = Service(meeting, peer.newest, peer.state(), least_room=0)
    peer.listen(service)
    follower = Follower(meeting, joiner, request())
    for _ in range(100):
        peer.train(1)
    assert service.over
    assert peer.newest == 100
    assert not follower.arrived


def test_a_step_that_is_taken_back_ends_the_service(board, meeting):
    peer, joiner = Stage(1), Stage(2)
    service = Service(meeting, peer.newest, peer.state())
    peer.listen(service)
    follower = Follower(meeting, joiner, request())
    wait_until(lambda: is_ready(board))
    peer.train(1)
    peer.update.undo()
    assert service.over
    assert follower.wait(120)
    assert not follower.arrived


def test_a_joiner_that_stands_still_holds_no_thread_of_the_server(meeting):
    peer = Stage(1)
    service = Service(meeting, peer.newest, peer.state())
    store = meeting.endpoint.connect()
    pair = meeting.accept(store, lambda: None)
    peer.listen(service)
    service.abort()
    service.join()
    del pair


def test_who_waits_for_the_other_end_stops_when_told_to(door, board):
    """Neither waits for as long as connecting may take."""
    meeting = Meeting(door, Durations(0.05, rebuild=3600.0, answer=3600.0, transfer=3600.0), 4, JOINER, 2)
    service = Service(meeting, 0, Stage(1).state())
    wait_until(lambda: board.joining.wait_offer(4, JOINER, 2, 0.05))
    service.abort()
    service.join()
    follower = Follower(meeting, Stage(2), request(2))
    time.sleep(0.2)  # by then it may wait for the one that has gone
    follower.stop()
    assert not follower.arrived


@pytest.mark.long
def test_who_serves_is_left_as_it_was(door):
    """Threads, connections and memory, whether services end well or not."""
    peer = Stage(1)
    services = []

    def counts():
        gc.collect()
        return threading.active_count(), sum(1 for _ in Path("/proc/self/fd").iterdir())

    def serve_once(number):
        meeting = Meeting(door, DURATIONS, 4, JOINER, number)
        service = Service(meeting, peer.newest, peer.state())
        peer.listen(service)
        follower = Follower(meeting, Stage(2), request(number))
        peer.train(2)
        if number % 2:
            service.abort()
        service.finish()
        peer.listen(None)
        service.join()
        assert follower.wait(120)
        services.append(weakref.ref(service))

    threads = threading.active_count()
    serve_once(100)
    wait_until(lambda: threading.active_count() <= threads)
    before = counts()
    for number in range(101, 109):
        serve_once(number)
    wait_until(lambda: counts() <= before)
    assert all(each() is None for each in services)


def test_a_joiner_asks_again_when_who_serves_it_is_gone_and_arrives(board, door):
    peer, joiner = Stage(1), Stage(2)
    joining = begin(joiner, door, board)
    serving = Serving(PEER, peer, door, DURATIONS)
    peer.train(2)
    serving.look(VIEW, board.joining.requests(VIEW.epoch))
    peer.train(1)
    serving.abort()
    while board.joining.requests(VIEW.epoch)[0].attempt == 1:
        joining.wait(board)
    serving.look(VIEW, board.joining.requests(VIEW.epoch))
    peer.train(1)
    while not is_ready(board):
        joining.wait(board)
    peer.train(1)
    require_arrival(serving, joining, board, peer, joiner)


def test_a_joiner_that_was_served_in_vain_for_some_times_comes_with_nothing(board, door):
    peer, joiner = Stage(1), Stage(2)
    # For as long as the construction of a group may take, who joins waits for who has left.
    joining = begin(joiner, door, board, rebuild=0.2)
    serving = Serving(PEER, peer, door, msgspec.structs.replace(DURATIONS, rebuild=0.2))
    seen = set()
    while not joining.ready:
        seen.add(board.joining.requests(VIEW.epoch)[0].attempt)
        serving.look(VIEW, board.joining.requests(VIEW.epoch))
        serving.abort()
        joining.wait(board)
    assert seen == set(range(1, ATTEMPTS + 1))
    assert is_ready(board)
    assert not joining.arrived


@pytest.fixture
def full(monkeypatch):
    """Host memory has no room for what is served."""

    def fail(tensor):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    return lambda: monkeypatch.setattr("recycle.runtime.join.serving.host_copy", fail)


def test_who_has_no_memory_to_serve_trains_on_and_the_joiner_comes_with_nothing(board, door, full):
    full()
    peer = Stage(1)
    joining, member = begin(Stage(2), door, board), Serving(PEER, peer, door, DURATIONS)
    seen = set()
    while not joining.ready:
        seen.add(board.joining.requests(VIEW.epoch)[0].attempt)
        member.look(VIEW, board.joining.requests(VIEW.epoch))
        peer.train(1)
        joining.wait(board)
    assert seen == set(range(1, ATTEMPTS + 1))
    assert is_ready(board)
    assert not joining.arrived


def test_who_has_no_memory_for_a_step_serves_no_longer_and_trains_on(meeting, full):
    peer = Stage(1)
    service = Service(meeting, peer.newest, peer.state())
    peer.listen(service)
    full()
    peer.train(2)
    assert service.over
    assert peer.newest == 2
    service.join()


def test_who_gets_no_thread_to_serve_trains_on_and_serves_the_next_request(board, door, monkeypatch):
    def fail(*_):
        raise NoneLeft("threads")

    peer, joiner = Stage(1), Stage(2)
    serving = Serving(PEER, peer, door, DURATIONS)
    with monkeypatch.context() as patch:
        patch.setattr("recycle.runtime.join.serving.start_thread", fail)
        serving.look(VIEW, [request()])
    peer.train(1)
    board.joining.request(request(2))
    serving.look(VIEW, board.joining.requests(VIEW.epoch))
    follower = Follower(Meeting(door, DURATIONS, 4, JOINER, 2), joiner, request(2))
    wait_until(lambda: is_ready(board))
    serving.finish()
    assert follower.wait(120)
    assert_equal(peer, joiner)


def test_a_request_that_a_stranger_takes_away_is_made_again_and_so_is_the_call_to_it(board, door):
    store = door.connect()
    joining = begin(Stage(2), door, board, silence=0.2)
    for _ in range(2):
        store.delete_all(lambda key: key.startswith(f"epoch/{VIEW.epoch}/"))
        assert not board.joining.requests(VIEW.epoch)
        while not board.joining.requests(VIEW.epoch) or not board.failures.wait_call(VIEW.epoch, 0.01)[0]:
            joining.repeat(board)
            joining.wait(board)
    assert board.joining.requests(VIEW.epoch) == (request(),)
    joining.stop()


def test_a_request_that_stands_is_not_repeated(board, door):
    joining = begin(Stage(2), door, board, silence=0.2)
    asked = board.joining.asked(VIEW.epoch)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        joining.repeat(board)
    assert board.joining.asked(VIEW.epoch) == asked
    joining.stop()


def test_a_joiner_whose_offer_a_stranger_takes_away_asks_again_and_does_not_come_with_nothing(board, door):
    peer, joiner = Stage(1), Stage(2)
    joining = begin(joiner, door, board, silence=0.2, hang=0.2, rebuild=0.2, answer=0.5)
    while board.joining.requests(VIEW.epoch)[0].attempt <= ATTEMPTS:
        joining.wait(board)
    assert not joining.ready
    serving = Serving(PEER, peer, door, DURATIONS)
    while not is_ready(board):
        serving.look(VIEW, board.joining.requests(VIEW.epoch))
        joining.wait(board)
    require_arrival(serving, joining, board, peer, joiner)


def test_a_joiner_whose_peers_are_all_dead_comes_with_nothing(board, door):
    joining = begin(Stage(2), door, board)
    joining.wait(board)
    assert not joining.ready
    board.failures.publish_death(Death(str(PEER), "fell over", "agent", 0.0))
    while not joining.ready:
        joining.wait(board)
    assert is_ready(board)
    assert not joining.arrived


def test_a_new_view_ends_what_was_begun_and_the_joiner_asks_in_it(board, door):
    peer, joiner = Stage(1), Stage(2)
    joining = begin(joiner, door, board)
    serving = Serving(PEER, peer, door, DURATIONS)
    serving.look(VIEW, board.joining.requests(VIEW.epoch))
    while not is_ready(board):
        joining.wait(board)
    next_view = View(5, VIEW.members)
    joining.begin(next_view, board)
    assert [each.state for each in board.joining.requests(next_view.epoch)] == ["asking"]
    serving.abort()
    serving.look(next_view, board.joining.requests(next_view.epoch))
    peer.train(1)
    require_arrival(serving, joining, board, peer, joiner)


def test_joiners_of_a_stage_are_spread_over_its_servers_and_served_in_turn(board, door):
    view = View(4, (PEER, *VIEW.members[1:], MORE))
    others = [Member(Server(number, 0), 1) for number in (3, 4, 5)]
    assert [server_of(view, each) for each in others] == [MORE, PEER, MORE]
    assert server_of(view, Member(Server(3, 2), 1)) is None
    peer = Stage(1)
    serving = Serving(MORE, peer, door, DURATIONS)
    requests = [JoinRequest(str(each), 4, 1) for each in others]
    for expected in (others[0], others[2]):
        for _ in range(2):
            serving.look(view, requests)
            service = peer.update.feed.listener
            assert service.meeting.joiner == expected
        service.abort()
    serving.look(view, requests)
    assert peer.update.feed.listener is None  # all these requests were met already
