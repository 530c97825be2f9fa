"""The alarm watch sees everybody who asks to be let in."""

from types import SimpleNamespace

from harness.memory_store import MemoryStore
from harness.started import wait_until
from recycle.control.board import Board
from recycle.control.durations import Durations
from recycle.control.messages import JoinRequest
from recycle.control.view import Member
from recycle.job import Server
from recycle.runtime.recover.alarm_watch import AlarmWatch

FIRST, SECOND = (JoinRequest(str(Member(Server(pipeline, 0), 1)), 0) for pipeline in range(2))


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
    door = SimpleNamespace(connect=lambda _: store.clone(), token="token")
    watch = AlarmWatch(door, Durations(beat=0.05), looks.append)

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
