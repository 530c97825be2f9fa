"""The alarm watch sees everybody who asks to be let in."""

import time
from types import SimpleNamespace

from harness.memory_store import MemoryStore
from recycle.control.board import Board
from recycle.control.durations import Durations
from recycle.control.messages import JoinRequest
from recycle.control.view import Member
from recycle.job import Server
from recycle.runtime.recover.alarm_watch import AlarmWatch

FIRST, SECOND = (JoinRequest(str(Member(Server(pipeline, 0), 1)), 0) for pipeline in range(2))


class Behind(MemoryStore):
    """Looks for joiners after each request to the store, as another process may."""

    look = staticmethod(lambda: None)

    def add(self, key, amount):
        found = super().add(key, amount)
        if amount:
            self.look()
        return found


def test_a_request_that_is_counted_and_not_stored_yet_is_seen_later():
    store = Behind()
    watch = AlarmWatch(SimpleNamespace(connect=lambda _: store.clone(), token="token"), Durations(beat=0.05))
    board = Board(store.clone(), "token")
    watch.start()
    watch.follow(0)
    Board(store, "token").joining.request(FIRST)
    while not watch.requests:
        time.sleep(0.01)
        watch.look_for_joiners(board)
    store.look = lambda: watch.look_for_joiners(board)
    Board(store, "token").joining.request(SECOND)
    assert watch.requests == (FIRST,)
    watch.look_for_joiners(board)
    assert watch.requests == (FIRST, SECOND)
    watch.stop()
