from collections.abc import Callable

from harness.memory_store import MemoryStore
from recycle.control.beats import Heartbeat, Watchlist, watched
from recycle.control.board import Board
from recycle.control.errors import StoreLost
from recycle.control.store import Store
from recycle.control.view import Member, View

A, B, C, D = (Member.parse(name) for name in ("W0_0#0", "W0_1#0", "W1_0#0", "W1_1#0"))
VIEW = View(0, (A, B, C, D))


def test_who_stops_beating_is_noticed_after_the_limit_and_not_before() -> None:
    watchlist = Watchlist(silence=3.0)
    for tick in range(12):
        assert watchlist.observe(tick / 4, {A: tick, B: 1}) == {}
    assert watchlist.observe(3.0, {A: 12, B: 1}) == {}
    assert watchlist.observe(3.25, {A: 13, B: 1}) == {B: 0.0}
    assert watchlist.observe(3.5, {A: 14, B: 2}) == {}


def test_who_never_beats_is_noticed_too() -> None:
    watchlist = Watchlist(silence=1.0)
    assert [watchlist.observe(tick / 4, {A: 0}) for tick in range(6)][-1] == {A: 0.0}


def test_after_a_pause_of_its_own_it_accuses_nobody() -> None:
    watchlist = Watchlist(silence=3.0)
    for tick in range(12):
        watchlist.observe(tick / 4, {A: 1})
    assert watchlist.observe(20.0, {A: 1}) == {}
    assert watchlist.observe(21.4, {A: 1}) == {}
    assert watchlist.observe(22.8, {A: 1}) == {}
    assert watchlist.observe(23.1, {A: 1}) == {A: 20.0}


def test_who_is_watched_anew_has_the_whole_limit() -> None:
    watchlist = Watchlist(silence=1.0)
    for tick in range(8):
        watchlist.observe(tick / 4, {A: tick})
    assert watchlist.observe(2.0, {B: 1}) == {}
    assert watchlist.observe(2.25, {A: 7, B: 1}) == {}


def test_everybody_is_watched_by_the_two_before_who_live() -> None:
    assert watched(VIEW, A, set()) == (B, C)
    assert watched(VIEW, D, set()) == (A, B)
    assert watched(VIEW, A, {B, C}) == (D,)
    assert watched(View(0, (A,)), A, set()) == ()


def test_a_heart_beats_until_it_is_stopped_and_finds_the_store_again(
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    first, second = MemoryStore(), MemoryStore()
    stores = [first, None, second]

    def connect() -> Store:
        store = stores.pop(0)
        if store is None:
            raise StoreLost("not yet")
        return store.clone()

    heart = Heartbeat(A, connect, "token", 0.001)
    eventually(lambda: Board(first, "token").beats.counts([A])[A] > 2)
    first.lose()
    eventually(lambda: Board(second, "token").beats.counts([A])[A] > 2)
    heart.stop()
    count = Board(second, "token").beats.counts([A])[A]
    assert Board(second, "token").beats.counts([A])[A] == count


def test_with_every_beat_something_else_can_be_looked_at(eventually: Callable[[Callable[[], bool]], None]) -> None:
    store = MemoryStore()
    seen: list[int] = []
    heart = Heartbeat(A, store.clone, "token", 0.001, lambda board: seen.append(board.beats.counts([A])[A]))
    eventually(lambda: len(seen) > 2)
    heart.stop()
    assert seen == list(range(1, len(seen) + 1))
