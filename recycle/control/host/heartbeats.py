"""Heartbeats: a worker gives signs of life, and others notice when they stop."""

import threading
from collections.abc import Hashable, Mapping, Set
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from recycle.control.host.signs import HostSocket, sign_of_worker
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import SOLE, Member, ServerRank
from recycle.threads import start_thread

_T = TypeVar("_T", bound=Hashable)


class Heartbeat:
    """Gives a worker's signs of life, from a thread of its own, until it is stopped.

    So it goes on whatever the main thread does, as long as that lets other threads run. The signs stay within the host.

    Args:
        member: whose signs they are.
        token: the run's.
        beat: seconds between two signs.
        rank: which of the member's ranks gives them.
    """

    def __init__(self, member: Member, token: str, beat: float, rank: ServerRank = SOLE) -> None:
        self._giver = Participant(member, rank)
        self._token = token
        self._beat = beat
        self._stopping = threading.Event()
        self._thread = start_thread(self._run, f"heartbeat of {member}")

    def stop(self) -> None:
        """Give no more signs, of which nobody is to miss the next."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        host = HostSocket(self._token)
        count = 0
        while not self._stopping.is_set():
            count += 1
            host.give(sign_of_worker(self._giver, count))
            self._stopping.wait(self._beat)
        host.give(sign_of_worker(self._giver, count + 1, over=True))
        host.close()


class RisingCounts(Generic[_T]):
    """Tells signs of life from older ones: only a stranger puts these into the store."""

    def __init__(self) -> None:
        self._greatest: dict[_T, int] = {}

    def risen(self, counts: Mapping[_T, int]) -> dict[_T, int]:
        """Take note of what each one has counted; gives those that are not less than before."""
        risen = {each: count for each, count in counts.items() if count >= self._greatest.get(each, 0)}
        self._greatest |= risen
        return risen


class _Sign(NamedTuple):
    """The newest one of somebody.

    Attributes:
        number: of them.
        since: when it was heard, in seconds.
        direct: whether it was heard whatever the one that looks at all of them waited for.
        risen: whether another one was known before, so that this one was given since.
    """

    number: int
    since: float
    direct: bool
    risen: bool = False


class Watchlist(Generic[_T]):
    """Notices whose signs of life have stopped.

    It blames no sender for a pause of its own: if it was itself not called for more than half the limit, because its
    process was stopped or the store hung, all have half the limit from then on, and after a pause longer than the limit
    all of it. A store that chooses a new leader is back sooner, so that its pause hardly delays the notice of a host
    that was lost together with the old one. A sender that is heard directly is heard while the store hangs. A sender
    that was over the limit before the pause is forgiven nothing.

    Args:
        silence: the limit, in seconds.

    Attributes:
        pause: the seconds between its last two calls.
    """

    def __init__(self, silence: float) -> None:
        self.pause = 0.0
        self._silence = silence
        self._called = float("-inf")
        self._last: dict[_T, _Sign] = {}

    def observe(
        self,
        now: float,
        beats: Mapping[_T, int],
        heard_at: Mapping[_T, float] = MappingProxyType({}),
        deaf: float = float("inf"),
    ) -> dict[_T, float]:
        """Take note of some signs of life.

        Args:
            now: the time in seconds, on a clock that never goes back.
            beats: how many signs each one has given. Who is not in it is not watched any more.
            heard_at: when the last ones were heard that were heard directly, by whom they are of.
            deaf: the longest time since the last call for which nothing could be heard directly, in seconds.

        Returns:
            Those who have been silent for longer than the limit, and since when.
        """
        self.pause = now - self._called
        self._forgive(self.pause, now, direct=False)
        self._forgive(min(self.pause, deaf), now, direct=True)
        self._called = now
        seen = {}
        for each, count in beats.items():
            last = self._last.get(each)
            known = last if last is not None and last.number == count else None
            seen[each] = known or _Sign(count, heard_at.get(each, now), each in heard_at, risen=last is not None)
        self._last = seen
        return {each: sign.since for each, sign in seen.items() if now - sign.since > self._silence}

    @property
    def due(self) -> float:
        """When the next of them will have been silent for the limit, if nothing is heard until then; in seconds."""
        awaited = (sign.since for sign in self._last.values() if self._called - sign.since <= self._silence)
        return min(awaited, default=float("inf")) + self._silence

    @property
    def suspects(self) -> Set[_T]:
        """Those that have been silent for more than a third of the limit."""
        return {each for each, sign in self._last.items() if self._called - sign.since > self._silence / 3}

    def hears_since(self, since: float) -> bool:
        """Whether a sign was given so long after a time, in seconds, that what ended then has not ended for all."""
        return any(sign.risen and sign.since - since > self._silence / 2 for sign in self._last.values())

    def _forgive(self, pause: float, now: float, *, direct: bool) -> None:
        if pause > self._silence / 2:
            earliest = now if pause > self._silence else now - self._silence / 2
            self._last = {
                each: sign._replace(since=max(sign.since, earliest))
                if sign.direct == direct and self._called - sign.since <= self._silence
                else sign
                for each, sign in self._last.items()
            }
