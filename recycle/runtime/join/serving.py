"""How a joiner gets its stage's state while the others train, so that the pause in which it is let in is short.

A server of the stage copies its state between two iterations, and a thread of its own sends the copy while the training
goes on. From then on the reduced gradient of every optimizer step is sent after it, and the joiner makes the same
steps: so it follows version by version, to the bit. When it has caught up, it says that it is ready. Then all members
pause before the same iteration, the last steps and an end mark are sent, and the joiner holds what all others hold.

Nothing here may delay the training or harm it. What goes wrong ends the service, and the joiner asks again; when that
has happened a few times, it lets itself in with nothing, and gets its state in the pause.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import torch

from recycle.control.board.board import Board
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import JoinRequest, derive_key
from recycle.control.membership.view import Member, View
from recycle.control.store.store import Store
from recycle.runtime.device import host_copy
from recycle.runtime.errors import Interrupted, ViewBroken
from recycle.runtime.join.handover import send_state
from recycle.runtime.net.connect import connect_pair
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.net.meeting_store import MeetingStore
from recycle.runtime.net.network import NetworkOptions, PrivateLink
from recycle.runtime.net.transfer_key import STATE
from recycle.runtime.step.trainee import Followable
from recycle.threads import NoneLeft, start_thread

# A stage's state is some three times its gradient. If this much has to wait while the state is sent, then gradients
# come faster than they can be sent, and the joiner would never catch up.
ROOM = 4
LEAST_ROOM = 1 << 26


class Word(IntEnum):
    """What comes next from who serves."""

    STEP = 1
    """What the next step is made from."""
    LEVEL = 2
    """Nothing more, just now."""
    END = 3
    """Nothing more at all: this is the version that everybody has."""


class Meeting(NamedTuple):
    """Where a joiner and who serves it find each other.

    Attributes:
        endpoint: of the store.
        durations: how long is waited for what.
        epoch: of the view.
        joiner: who joins.
        attempt: which of its requests is met.
        rank: of its server; equal ranks meet.
    """

    endpoint: Endpoint
    durations: Durations
    epoch: int
    joiner: Member
    attempt: int
    rank: int = 0

    @property
    def _place(self) -> str:
        return f"epoch/{self.epoch}/join/{self.joiner}/{self.rank}/{self.attempt}"

    @property
    def secret(self) -> bytes:
        """Of the two, for this meeting alone."""
        return derive_key(self.endpoint.token, self._place)

    def offer(self, check: Callable[[], None]) -> PrivateLink:
        """Call the joiner, and connect to it.

        Args:
            check: raises when nobody needs that any more.

        Raises:
            ViewBroken: it did not come, or the check raised it.
            StoreLost: there is no store.
        """
        store = self.endpoint.connect(self.durations.rebuild)
        Board(store, self.endpoint.token).joining.offer(self.epoch, self.joiner, self.attempt, self.rank)
        return self._pair(store, True, check)

    def accept(self, store: Store, check: Callable[[], None]) -> PrivateLink:
        """Connect to who calls.

        Args:
            store: a connection to where it calls.
            check: raises when nobody needs that any more.

        Raises:
            ViewBroken: it did not come, or the check raised it.
        """
        return self._pair(store, False, check)

    def _pair(self, store: Store, first: bool, check: Callable[[], None]) -> PrivateLink:
        rebuild = timedelta(seconds=self.durations.rebuild)
        place = MeetingStore(store, self.endpoint.token, f"{self._place}/")
        place.set_timeout(rebuild)
        transfer = timedelta(seconds=self.durations.transfer)
        options = NetworkOptions(transfer, rebuild, self.endpoint.address)
        return connect_pair(place, first, options, check)


def server_of(view: View, joiner: Member) -> Member | None:
    """Which member serves a joiner; None if its stage has no live server. Both know it without asking."""
    peers = [each for each in view.members if each.server.stage == joiner.server.stage]
    return peers[joiner.server.pipeline % len(peers)] if peers else None


class _Item(NamedTuple):
    word: Word
    step: int
    parts: Sequence[torch.Tensor] = ()

    @property
    def size(self) -> int:
        return sum(each.nbytes for each in self.parts)


class Service:
    """A joiner is served, by a thread of its own; a Listener. All methods are for the main thread, and none waits.

    Args:
        meeting: where the joiner is met.
        step: the version that is served.
        state: of the stage; copied here. Where there is no room for that, the joiner is offered it, and gets nothing.
        least_room: bytes that may wait to be sent, if the state is not much larger itself.

    Raises:
        NoneLeft: there is no thread for it.
    """

    def __init__(
        self, meeting: Meeting, step: int, state: Mapping[str, torch.Tensor], least_room: int = LEAST_ROOM
    ) -> None:
        self.meeting = meeting
        copies = _copied(state.values())
        self._newest = step
        self._room = max(least_room, ROOM * sum(each.nbytes for each in copies or ()))
        self._waiting: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._pair: PrivateLink | None = None
        self._over = False
        named = None if copies is None else dict(zip(state, copies, strict=True))
        self._thread = start_thread(partial(self._run, step, named), f"serving {meeting.joiner}", 0)

    @property
    def over(self) -> bool:
        """Whether it has come to its end, good or bad."""
        return self._over

    def stepping(self, parts: Sequence[torch.Tensor]) -> None:
        """See Listener."""
        self._newest += 1
        self._put(_Item(Word.STEP, self._newest, parts))

    def undone(self) -> None:
        """See Listener: nobody takes back what was sent."""
        self.abort()

    def finish(self) -> None:
        """Send what is left, and the end mark."""
        self._put(_Item(Word.END, self._newest))

    def abort(self) -> None:
        """End at once."""
        pair = self._close()
        if pair is not None:
            pair.unblock()

    def join(self) -> None:
        """Wait until its thread has ended."""
        self._thread.join()

    def _put(self, item: _Item) -> None:
        with self._changed:
            if self._over:
                return
            fits = sum(each.size for each in self._waiting) + item.size <= self._room
            parts = _copied(item.parts) if fits else None
            if parts is not None:
                self._waiting.append(item._replace(parts=parts))
                self._changed.notify()
        if parts is None:
            self.abort()

    def _close(self) -> PrivateLink | None:
        with self._changed:
            self._over = True
            self._waiting.clear()
            pair, self._pair = self._pair, None
            self._changed.notify()
            return pair

    def _run(self, step: int, state: dict[str, torch.Tensor] | None) -> None:
        try:
            self._serve(step, state)
        except (ViewBroken, StoreLost):
            pass  # the joiner notices it as well
        finally:
            self._close()

    def _check(self) -> None:
        if self._over:
            raise Interrupted(f"{self.meeting.joiner} is served no longer")

    def _serve(self, step: int, state: dict[str, torch.Tensor] | None) -> None:
        pair = self.meeting.offer(self._check)
        if state is None:
            # The joiner counts what was offered in vain, and lets itself in with nothing at last.
            pair.unblock()
            return
        with self._changed:
            if self._over:
                return
            self._pair = pair
        send_state(pair, self.meeting.secret, step, state)
        state.clear()
        level = False
        while (item := self._next(step, level)) is not None:
            word, step, parts = item
            pair.send(torch.tensor([word, step]), STATE).wait()
            level = level or word is Word.LEVEL
            if word is Word.STEP:
                send_state(pair, self.meeting.secret, step, {str(place): each for place, each in enumerate(parts)})
            elif word is Word.END:
                return

    def _next(self, step: int, level: bool) -> _Item | None:
        """What is sent next; None if it is over."""
        with self._changed:
            if level:
                self._changed.wait_for(lambda: self._over or self._waiting)
            if self._over:
                return None
            return self._waiting.popleft() if self._waiting else _Item(Word.LEVEL, step)


def _copied(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor] | None:
    """Copies in host memory; None where that has no room for them."""
    try:
        return [host_copy(each) for each in tensors]
    except (RuntimeError, OSError):
        return None


class Serving:
    """What a member does for joiners, one after another.

    Args:
        member: who this is.
        versions: of its state.
        endpoint: of the store.
        durations: how long is waited for what.
        rank: of its server; it serves its equals.
    """

    def __init__(
        self, member: Member, versions: Followable, endpoint: Endpoint, durations: Durations, rank: int = 0
    ) -> None:
        self._member = member
        self._rank = rank
        self._versions = versions
        self._endpoint = endpoint
        self._durations = durations
        self._service: Service | None = None
        self._served: dict[Member, int] = {}

    def look(self, view: View, requests: Iterable[JoinRequest]) -> None:
        """Begin to serve, if somebody asks for it; between two iterations.

        Args:
            view: of the member.
            requests: of joiners in this view, perhaps not the latest.
        """
        if self._service is not None:
            if not self._service.over:
                return
            self.abort()
        for request in requests:
            joiner = Member.parse(request.member)
            mine = joiner.server not in view.servers and server_of(view, joiner) == self._member
            mine = mine and request.rank == self._rank
            if mine and request.state == "asking" and request.attempt > self._served.get(joiner, -1):
                self._served[joiner] = request.attempt
                meeting = Meeting(self._endpoint, self._durations, view.epoch, joiner, request.attempt, self._rank)
                with suppress(NoneLeft):  # the joiner asks again
                    self._service = Service(meeting, self._versions.newest, self._versions.state())
                    self._versions.listen(self._service)
                return

    def finish(self) -> None:
        """All members pause here, so the joiner gets what it lacks; it may go on after this has returned."""
        self._versions.listen(None)
        if self._service is not None:
            self._service.finish()

    def abort(self) -> None:
        """Serve nobody any more."""
        self._versions.listen(None)
        if self._service is not None:
            self._service.abort()
            self._service = None
