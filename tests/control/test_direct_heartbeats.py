"""DirectHeartbeats between two hosts, by clocks that are told, and over real sockets."""

from collections.abc import Callable

from recycle.control.host.direct_heartbeats import REACHED, DirectHeartbeats, DirectHeartbeatSocket, Heard
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.durations import Durations

SILENCE = 3.0
Eventually = Callable[[Callable[[], bool]], None]
WHERE = ("10.0.0.2", 1)


def pair() -> tuple[DirectHeartbeats, DirectHeartbeats]:
    """A host that watches, and one that it watches. Their clocks are far apart."""
    watcher, watched = DirectHeartbeats("one", "token", SILENCE), DirectHeartbeats("two", "token", SILENCE)
    watcher.aim({"two": WHERE}, 0)
    watched.reach_store(5000.0)
    return watcher, watched


def hail(watcher: DirectHeartbeats, watched: DirectHeartbeats, now: float, theirs: float) -> bytes | None:
    """One hail, and what would answer it."""
    [(sealed, address)] = watcher.calls(now)
    assert address == WHERE
    return watched.take(sealed, theirs)


def test_who_answers_is_heard_and_hears_with_the_next_hail_that_it_is() -> None:
    watcher, watched = pair()
    answer = hail(watcher, watched, 10.0, 5000.0)
    assert answer is not None
    assert watcher.heard(10.0) == {}
    assert watcher.take(answer, 10.1) is None
    assert watcher.heard(10.1) == {"two": Heard(5_000_000, 10.1)}
    assert not watched.is_heard_by("one", 5000.1)
    hail(watcher, watched, 10.5, 5000.5)
    assert watched.is_heard_by("one", 5000.5)


def test_neither_is_heard_for_long_by_what_it_said_once() -> None:
    watcher, watched = pair()
    watcher.take(hail(watcher, watched, 10.0, 5000.0) or b"", 10.0)
    hail(watcher, watched, 10.5, 5000.5)
    assert watcher.heard(11.5)
    assert not watcher.heard(11.6)
    assert watched.is_heard_by("one", 5001.0)
    assert not watched.is_heard_by("one", 5001.1)


def test_what_was_recorded_and_comes_again_is_no_sign_of_life() -> None:
    watcher, watched = pair()
    [(first, _)] = watcher.calls(10.0)
    answer = watched.take(first, 5000.0)
    assert answer is not None
    watcher.take(answer, 10.0)
    [(second, _)] = watcher.calls(10.5)
    watched.take(second, 5000.5)
    # The one that is watched is dead, and its answer comes again; then the other one is.
    watcher.take(answer, 13.0)
    assert not watcher.heard(13.0)
    watched.take(second, 5003.0)
    assert not watched.is_heard_by("one", 5003.0)


def test_what_a_stranger_says_or_what_was_meant_for_another_host_is_ignored() -> None:
    watcher, watched = pair()
    stranger, third = DirectHeartbeats("one", "another token", SILENCE), DirectHeartbeats("three", "token", SILENCE)
    stranger.aim({"two": WHERE}, 7)
    third.reach_store(5000.0)
    assert hail(stranger, watched, 10.0, 5000.0) is None
    assert hail(watcher, third, 10.0, 5000.0) is None
    assert watched.take(b"", 5000.0) is None
    assert watched.newest_epoch == -1


def test_who_has_not_reached_the_store_for_long_answers_no_more() -> None:
    watcher, watched = pair()
    assert hail(watcher, watched, 10.0, 5000.0 + REACHED * SILENCE) is not None
    later = 5000.5 + REACHED * SILENCE
    assert hail(watcher, watched, 10.5, later) is None
    watched.reach_store(later)
    assert hail(watcher, watched, 10.5, later) is not None


def test_who_looks_at_the_store_as_seldom_as_hosts_do_answers_all_the_time() -> None:
    assert Durations().rare_look + Durations().silence <= REACHED * Durations().silence


def test_of_who_answers_elsewhere_nothing_is_known() -> None:
    watcher, watched = pair()
    watcher.take(hail(watcher, watched, 10.0, 5000.0) or b"", 10.0)
    watcher.aim({"two": WHERE}, 0)
    assert watcher.heard(10.0)
    watcher.aim({"two": ("10.0.0.3", 1)}, 0)
    assert not watcher.heard(10.0)


def test_hosts_hear_of_a_new_epoch_from_each_other() -> None:
    watcher, watched = pair()
    watched.aim({}, 4)
    watcher.take(hail(watcher, watched, 10.0, 5000.0) or b"", 10.0)
    assert watcher.newest_epoch == 4
    watcher.aim({"two": WHERE}, 6)
    hail(watcher, watched, 10.5, 5000.5)
    assert watched.newest_epoch == 6


def test_over_sockets_a_host_is_heard_until_it_closes_its_own(eventually: Eventually) -> None:
    now = [10.0]
    watcher, watched = (
        DirectHeartbeatSocket(DirectHeartbeats(each, "token", SILENCE), LOOPBACK, 0.01, lambda: now[0])
        for each in ("one", "two")
    )
    watcher.heartbeats.aim({"two": watched.address}, 0)
    watched.heartbeats.reach_store(now[0])
    eventually(lambda: watcher.heartbeats.heard(now[0]) == {"two": Heard(10_000, 10.0)})
    watched.close()
    now[0] = 11.0
    assert watcher.heartbeats.heard(now[0]) == {"two": Heard(10_000, 10.0)}
    watcher.close()
