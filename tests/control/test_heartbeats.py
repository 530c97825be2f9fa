import secrets
import time
from collections.abc import Callable

from recycle.control.host.heartbeats import Heartbeat, Watchlist
from recycle.control.host.signs import HostSocket, Sign
from recycle.control.membership.view import Member

Eventually = Callable[[Callable[[], bool]], None]
A, B = (Member.parse(name) for name in ("W0_0#0", "W0_1#0"))


def test_who_stops_beating_is_noticed_after_the_limit_and_not_before() -> None:
    watchlist = Watchlist[Member](silence=3.0)
    for tick in range(12):
        assert watchlist.observe(tick / 4, {A: tick, B: 1}) == {}
    assert watchlist.observe(3.0, {A: 12, B: 1}) == {}
    assert watchlist.observe(3.25, {A: 13, B: 1}) == {B: 0.0}
    assert watchlist.observe(3.5, {A: 14, B: 2}) == {}


def test_the_limit_counts_from_when_a_sign_was_heard() -> None:
    watchlist = Watchlist[Member](silence=3.0)
    watchlist.observe(0.0, {A: 1, B: 1})
    watchlist.observe(0.5, {A: 2, B: 2}, {A: 0.125})
    for tick in range(2, 7):
        assert watchlist.observe(tick / 2, {A: 2, B: 2}, {A: 0.125}) == {}
    assert watchlist.observe(3.25, {A: 2, B: 2}) == {A: 0.125}


def test_when_the_limit_of_the_first_one_is_over_is_known_before() -> None:
    watchlist = Watchlist[Member](silence=3.0)
    assert watchlist.due == float("inf")
    watchlist.observe(0.0, {A: 1, B: 1})
    watchlist.observe(0.5, {A: 1, B: 2})
    assert watchlist.due == 3.0
    watchlist.observe(1.0, {A: 2, B: 2}, {A: 0.75})
    assert watchlist.due == 3.5
    watchlist.observe(1.5, {A: 2})
    assert watchlist.due == 3.75


def test_who_is_over_the_limit_is_a_suspect_from_a_third_of_it_on_and_is_due_no_more() -> None:
    watchlist = Watchlist[Member](silence=3.0)
    watchlist.observe(0.0, {A: 1, B: 1})
    watchlist.observe(1.0, {A: 2, B: 1})
    assert watchlist.suspects == set()
    watchlist.observe(1.5, {A: 3, B: 1})
    assert (watchlist.suspects, watchlist.due) == ({B}, 3.0)
    watchlist.observe(2.5, {A: 4, B: 1})
    assert watchlist.observe(3.5, {A: 5, B: 1}) == {B: 0.0}
    assert (watchlist.suspects, watchlist.due) == ({B}, 6.5)


def test_only_a_sign_that_has_changed_and_half_the_limit_later_tells_that_others_are_there() -> None:
    watchlist = Watchlist[Member](silence=3.0)
    watchlist.observe(0.0, {A: 1})
    assert not watchlist.hears_since(-2.0), "it may be an old one"
    watchlist.observe(1.5, {A: 2, B: 1})
    assert not watchlist.hears_since(0.0)
    watchlist.observe(2.0, {A: 2, B: 1})
    assert not watchlist.hears_since(0.0)
    watchlist.observe(2.5, {A: 3, B: 1})
    assert watchlist.hears_since(0.0)
    assert not watchlist.hears_since(1.0)


def test_a_pause_forgives_nothing_to_who_was_over_the_limit_before_it() -> None:
    watchlist = Watchlist[Member](silence=3.0)
    for tick in range(14):
        watchlist.observe(tick / 4, {A: 1, B: tick})
    assert watchlist.observe(20.0, {A: 1, B: 13}) == {A: 0.0}


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


def test_after_a_pause_shorter_than_the_limit_all_have_half_of_it() -> None:
    watchlist = Watchlist[Member](silence=3.0)
    for tick in range(5):
        watchlist.observe(tick / 4, {A: tick, B: 1})
    # The store has chosen a new leader.
    assert watchlist.observe(3.5, {A: 5, B: 1}) == {}
    assert watchlist.observe(4.25, {A: 6, B: 1}) == {}
    assert watchlist.observe(5.0, {A: 7, B: 1}) == {}
    assert watchlist.observe(5.25, {A: 8, B: 1}) == {B: 2.0}


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
    heart = Heartbeat(A, token, 0.001)
    eventually(lambda: bool(signs.extend(host.take()) or len(signs) > 5))
    heart.stop()
    signs += host.take()
    assert {(each.member, each.role) for each in signs} == {("W0_0#0", "worker")}
    # Where there was no room, some are lost; none comes twice.
    assert sorted({each.count for each in signs}) == [each.count for each in signs]
    time.sleep(0.01)
    assert list(host.take()) == []
    host.close()


def test_a_heart_needs_nobody_to_hear_it() -> None:
    Heartbeat(A, secrets.token_hex(8), 0.001).stop()
