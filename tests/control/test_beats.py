import secrets
import time
from collections.abc import Callable

from harness.memory_store import MemoryStore
from recycle.control.beats import Heartbeat, Watchlist
from recycle.control.board import Board
from recycle.control.errors import StoreLost
from recycle.control.signs import HostSocket, Sign
from recycle.control.store import Store
from recycle.control.view import Member

Eventually = Callable[[Callable[[], bool]], None]
A, B = (Member.parse(name) for name in ("W0_0#0", "W0_1#0"))


def test_who_stops_beating_is_noticed_after_the_limit_and_not_before() -> None:
    watchlist = Watchlist[Member](silence=3.0)
    for tick in range(12):
        assert watchlist.observe(tick / 4, {A: tick, B: 1}) == {}
    assert watchlist.observe(3.0, {A: 12, B: 1}) == {}
    assert watchlist.observe(3.25, {A: 13, B: 1}) == {B: 0.0}
    assert watchlist.observe(3.5, {A: 14, B: 2}) == {}


def test_who_never_beats_is_noticed_too() -> None:
    watchlist = Watchlist[Member](silence=1.0)
    assert [watchlist.observe(tick / 4, {A: 0}) for tick in range(6)][-1] == {A: 0.0}


def test_after_a_pause_of_its_own_it_accuses_nobody() -> None:
    watchlist = Watchlist[Member](silence=3.0)
    for tick in range(12):
        watchlist.observe(tick / 4, {A: 1})
    assert watchlist.observe(20.0, {A: 1}) == {}
    assert watchlist.observe(21.4, {A: 1}) == {}
    assert watchlist.observe(22.8, {A: 1}) == {}
    assert watchlist.observe(23.1, {A: 1}) == {A: 20.0}


def test_who_is_watched_anew_has_the_whole_limit() -> None:
    watchlist = Watchlist[Member](silence=1.0)
    for tick in range(8):
        watchlist.observe(tick / 4, {A: tick})
    assert watchlist.observe(2.0, {B: 1}) == {}
    assert watchlist.observe(2.25, {A: 7, B: 1}) == {}


def test_a_heart_beats_until_it_is_stopped_and_then_says_so(eventually: Eventually) -> None:
    token, signs = secrets.token_hex(8), list[Sign]()
    host = HostSocket(token)
    assert host.listen()
    heart = Heartbeat(A, MemoryStore, token, 0.001)
    eventually(lambda: bool(signs.extend(host.take()) or len(signs) > 5))
    heart.stop()
    signs += host.take()
    assert {(each.member, each.role) for each in signs} == {("W0_0#0", "worker")}
    # Where there was no room, some are lost; none comes twice.
    assert sorted({each.count for each in signs}) == [each.count for each in signs]
    time.sleep(0.01)
    assert list(host.take()) == []
    host.close()


def test_a_heart_that_stops_needs_no_store_and_nobody_to_hear_it() -> None:
    def connect() -> Store:
        raise StoreLost("there is none")

    Heartbeat(A, connect, secrets.token_hex(8), 0.001, lambda _: None).stop()


def test_with_every_beat_something_else_can_be_looked_at_in_a_store_that_is_found_again(eventually: Eventually) -> None:
    first, second = MemoryStore(), MemoryStore()
    stores = [first, None, second]
    looks: list[Board] = []

    def connect() -> Store:
        store = stores.pop(0)
        if store is None:
            raise StoreLost("not yet")
        return store.clone()

    def look(board: Board) -> None:
        board.verdicts.number()
        looks.append(board)

    heart = Heartbeat(A, connect, secrets.token_hex(8), 0.001, look)
    eventually(lambda: len(looks) > 2)
    first.lose()
    eventually(lambda: len(set(looks)) == 2)
    heart.stop()
