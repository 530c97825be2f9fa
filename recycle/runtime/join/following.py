"""A joiner's way to the version that all others have: it asks, is served, and follows, until it can be let in."""

import threading
import time

import msgspec
import torch

from recycle.control.board.board import Board
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import JoinRequest
from recycle.control.membership.view import Member, View
from recycle.runtime.device import on_own_device
from recycle.runtime.errors import ConnectionLost, Interrupted, ViewBroken
from recycle.runtime.join.handover import receive_state
from recycle.runtime.join.serving import Meeting, Word
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.net.network import Link, PrivateLink
from recycle.runtime.net.transfer_key import STATE
from recycle.runtime.step.trainee import Followable
from recycle.threads import start_thread

ATTEMPTS = 3
"""How often a joiner is served in one view before it lets itself in with nothing."""


class Follower:
    """Gets a version and follows, in a thread of its own, which alone uses the versions meanwhile.

    Args:
        meeting: where it is served.
        versions: what gets the state.
        request: what it asks for; it says on the board when the joiner has caught up.

    Attributes:
        arrived: whether it holds the version before whose iteration all others pause.
        offered: whether a server has offered it the state.
        request: as it stands.
    """

    def __init__(self, meeting: Meeting, versions: Followable, request: JoinRequest) -> None:
        self.arrived = self.offered = False
        self.request = request
        self._meeting = meeting
        self._versions = versions
        self._changed = threading.Lock()
        self._stopped = False
        self._pair: PrivateLink | None = None
        self._over = threading.Event()
        self._thread = start_thread(on_own_device(self._run), f"following as {meeting.joiner}")

    def wait(self, timeout: float) -> bool:
        """Wait for its end, for so many seconds at most; whether it has ended."""
        return self._over.wait(timeout)

    def stop(self) -> None:
        """End it, and wait until the versions are free."""
        with self._changed:
            self._stopped = True
            pair = self._pair
        if pair is not None and not self._over.is_set():
            pair.unblock()
        self._over.wait()

    def _run(self) -> None:
        try:
            self._follow()
        except (ViewBroken, StoreLost):
            pass  # the joiner asks again
        finally:
            self._over.set()
            # Its end takes its time, and nobody has to wait for it.
            self._pair = None

    def _check(self) -> None:
        if self._stopped:
            raise Interrupted(f"{self._meeting.joiner} follows nobody any longer")

    def _follow(self) -> None:
        meeting, versions = self._meeting, self._versions
        store = meeting.endpoint.connect(meeting.durations.rebuild)
        board = Board(store, meeting.endpoint.token)
        joiner, attempt, beat = meeting.joiner, meeting.attempt, meeting.durations.beat
        deadline = time.monotonic() + meeting.durations.answer
        while not board.joining.wait_offer(meeting.epoch, joiner, attempt, beat, meeting.rank):
            if self._stopped or time.monotonic() >= deadline:
                # All others may be busy; or a stranger has taken the offer away, which is made once for each attempt.
                return
        self.offered = True
        pair = meeting.accept(store, self._check)
        with self._changed:
            if self._stopped:
                return
            self._pair = pair
        versions.adopt(*receive_state(pair, meeting.secret))
        while True:
            word, step = _hear(pair)
            if word is Word.STEP:
                _, parts = receive_state(pair, meeting.secret)
                versions.follow(tuple(parts.values()))
            if versions.newest != step:
                raise ConnectionLost(f"who serves is at version {step}, and this is version {versions.newest}")
            if word is Word.LEVEL:
                self.request = msgspec.structs.replace(self.request, state="synced")
                board.joining.request(self.request)
            elif word is Word.END:
                self.arrived = True
                return


def _hear(link: Link) -> tuple[Word, int]:
    tensor = torch.zeros(2, dtype=torch.int64)
    link.receive(tensor, STATE).wait()
    word, step = tensor.tolist()
    try:
        return Word(word), step
    except ValueError as error:
        raise ConnectionLost(f"who serves says {word}, which is no word") from error


class Joining:
    """A joiner's requests, until it can report what it holds in the view of the run; for the main thread.

    Args:
        member: who joins.
        versions: of its state; None where it cannot follow, and comes with nothing.
        endpoint: of the store.
        durations: how long is waited for what.
        rank: of its server.

    Attributes:
        ready: whether it can be admitted in this view, be it with nothing.
        arrived: whether it holds the version of the others.
    """

    def __init__(
        self, member: Member, versions: Followable | None, endpoint: Endpoint, durations: Durations, rank: int = 0
    ) -> None:
        self.ready = self.arrived = False
        self._rank = rank
        self._versions = versions
        self._endpoint = endpoint
        self._durations = durations
        self._member = member
        self._view = View(-1, ())
        self._attempt = 0
        self._tries = 0
        self._follower: Follower | None = None
        self._request: JoinRequest | None = None
        self._repeated = 0.0

    def begin(self, view: View, board: Board) -> None:
        """Ask in a view; what was begun in another one is of no use."""
        self.stop()
        self.ready = self.arrived = False
        self._view = view
        self._tries = 0
        if self._versions is not None:
            self._ask(self._versions, board)

    def wait(self, board: Board) -> bool:
        """Wait for a beat, or until it is ready; says whether it is."""
        follower, versions = self._follower, self._versions
        if follower is None or versions is None:
            self._come_with_nothing(board)
        elif follower.wait(self._durations.beat):
            self._follower = None
            self._request = follower.request
            self._tries += follower.offered
            self.arrived = follower.arrived
            if self.arrived:
                self.ready = True
            elif self._tries < ATTEMPTS:
                self._ask(versions, board)
            else:
                self._come_with_nothing(board)
        elif not self._has_peer(board):
            self.stop()
            self._come_with_nothing(board)
        return self.ready

    def repeat(self, board: Board) -> None:
        """See now and then that what was asked for stands."""
        request, now = self._request if self._follower is None else self._follower.request, time.monotonic()
        if request is not None and now >= self._repeated + self._durations.silence:
            self._repeated = now
            board.joining.repeat(request)

    def stop(self) -> None:
        """Ask no more; the versions are free after it."""
        if self._follower is not None:
            self._follower.stop()
            self._follower = None
        self._request = None

    def _ask(self, versions: Followable, board: Board) -> None:
        self._attempt += 1
        request = JoinRequest(str(self._member), self._view.epoch, self._attempt, rank=self._rank)
        self._say(request, board)
        meeting = Meeting(self._endpoint, self._durations, self._view.epoch, self._member, self._attempt, self._rank)
        self._follower = Follower(meeting, versions, request)

    def _come_with_nothing(self, board: Board) -> None:
        self._say(JoinRequest(str(self._member), self._view.epoch, self._attempt, "synced", self._rank), board)
        self.ready = True

    def _say(self, request: JoinRequest, board: Board) -> None:
        self._request, self._repeated = request, time.monotonic()
        board.joining.request(request)

    def _has_peer(self, board: Board) -> bool:
        stage = self._member.server.stage
        return any(each.server.stage == stage and board.failures.death(each) is None for each in self._view.members)
