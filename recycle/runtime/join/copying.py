"""How servers get copies of chunks that they are to hold in the next view, while training goes on.

A copy is made as for a joiner (``serving.py``, ``following.py``): a server with the chunk copies its state between two
iterations and sends it from a thread of its own, and after it what every step is made from; who is to hold it makes the
same steps, apart from its training. When nothing is left to be sent, it says so. What has not come by the pause in
which the chunks move comes in the pause.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from recycle.control.board.board import Board
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import JoinRequest, MoveOrder
from recycle.control.membership.view import Member, View
from recycle.holding import live_holders, units_of, with_layout
from recycle.job import Job, Server
from recycle.runtime.join.following import Follower
from recycle.runtime.join.serving import Meeting, Service
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.step.trainee import Movable


class ChunkCopy(NamedTuple):
    """A chunk that a server is to hold.

    Attributes:
        chunk: which.
        source: the server that holds it.
        target: who is to.
    """

    chunk: int
    source: Member
    target: Member


def find_copies(job: Job, order: MoveOrder, view: View) -> tuple[ChunkCopy, ...]:
    """What has to be copied; all members find the same.

    A chunk comes from a server of the target's own pipeline, if any of it holds it: that one gives it away, or sends it
    nowhere else. Of those, and of all others, it is the one that has the least to send so far.

    Args:
        job: what is trained, with what each server holds now.
        order: who is to hold what.
        view: of the live servers.
    """
    following = with_layout(job, order.layout)
    holders = live_holders(job, frozenset(view.servers))
    sent: Counter[Server] = Counter()
    copies = []
    for target in view.members:
        here = units_of(job, target.server)
        for chunk in units_of(following, target.server):
            if chunk in here or not holders[chunk]:
                continue
            pipeline = target.server.pipeline
            source = min(holders[chunk], key=lambda each: (each.pipeline != pipeline, sent[each], each))
            sent[source] += 1
            copies.append(ChunkCopy(chunk, view.member(source), target))
    return tuple(copies)


class Copying:
    """A member's part in the copies of a view. All methods are for the main thread, and only ``finish`` waits.

    Args:
        member: who this is.
        chunks: of its training; None where nothing moves.
        endpoint: of the store.
        durations: how long is waited for what.
    """

    def __init__(self, member: Member, chunks: Movable | None, endpoint: Endpoint, durations: Durations) -> None:
        self._member = member
        self._chunks = chunks
        self._endpoint = endpoint
        self._durations = durations
        self._begun = False
        self._services: list[tuple[int, Service]] = []
        self._followers: dict[int, tuple[JoinRequest, Follower]] = {}
        self._told: set[int] = set()

    def look(self, job: Job, view: View, order: MoveOrder | None, board: Board) -> None:
        """Between two iterations: begin with the copies that were ordered in a view, and say which did not come.

        Raises:
            StoreLost: there is no store.
        """
        if self._chunks is None or order is None or order.epoch != view.epoch:
            return
        if not self._begun:
            self._begun = True
            for copy in find_copies(job, order, view):
                self._begin(copy, view.epoch, self._chunks)
            self._chunks.listen(self._services)
        for chunk, (request, follower) in self._followers.items():
            if follower.wait(0) and chunk not in self._told:
                # It has ended early, so this chunk comes in the pause.
                self._told.add(chunk)
                board.joining.request(msgspec.structs.replace(request, state="synced"))

    def finish(self) -> None:
        """All members pause here: send the last steps, and wait for those of others as long as for who may be dead."""
        if self._chunks is None or not self._begun:
            return
        self._chunks.listen(())
        for _, service in self._services:
            service.finish()
        deadline = time.monotonic() + self._durations.silence
        for chunk, (_, follower) in self._followers.items():
            follower.wait(max(0.0, deadline - time.monotonic()))
            if follower.arrived:
                self._chunks.take_copy(chunk)

    def abort(self) -> None:
        """Have done with the copies of a view; those that have arrived stay."""
        if self._chunks is None or not self._begun:
            return
        self._chunks.listen(())
        for _, service in self._services:
            service.abort()
        for _, follower in self._followers.values():
            follower.stop()
        self._services, self._followers = [], {}
        self._told.clear()
        self._begun = False

    def _begin(self, copy: ChunkCopy, epoch: int, chunks: Movable) -> None:
        meeting = Meeting(self._endpoint, self._durations, epoch, copy.target, copy.chunk)
        if copy.source == self._member:
            service = Service(meeting, chunks.newest, chunks.part(copy.chunk))
            self._services.append((copy.chunk, service))
        elif copy.target == self._member:
            request = JoinRequest(str(self._member), epoch, copy.chunk, chunk=copy.chunk)
            self._followers[copy.chunk] = request, Follower(meeting, chunks.start_copy(copy.chunk), request)


def has_copies(job: Job, order: MoveOrder, view: View, requests: Sequence[JoinRequest]) -> bool:
    """Whether all copies of an order have come, or ended.

    Args:
        job: what is trained, with what each server holds now.
        order: which.
        view: of the live servers.
        requests: what members have said of their copies in the view.
    """
    come = {(each.member, each.chunk) for each in requests if each.state == "synced"}
    return all((str(copy.target), copy.chunk) in come for copy in find_copies(job, order, view))
