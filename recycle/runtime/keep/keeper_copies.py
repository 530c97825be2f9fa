"""A server's copies with keepers: it puts its part of every version there, and gets versions from them."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol

import msgspec
import torch

from recycle.control.membership.view import SOLE, ServerRank, View
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.runtime.device import on_own_device
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.keep.fetching import Fetching, ask_all
from recycle.runtime.keep.layout import Version, cut_by_shards, cut_evenly, outline_of, recut, shard_of
from recycle.runtime.keep.pieces import blocks_of
from recycle.runtime.step.trainee import KeptShards
from recycle.state.client import Delivery, KeeperClient, send
from recycle.state.errors import KeeperLost
from recycle.state.ladder import Copy, StatePart, find_whole
from recycle.state.redundancy import Redundancy, piece_size
from recycle.threads import start_thread

REST, LONGEST_REST = 10.0, 600.0
"""Seconds for which a keeper that was lost gets nothing, so that a silent one does not hold up each iteration: at
first, and at most, after it was tried again and again in vain."""


class KeptStage(Protocol):
    """What is kept: a stage's versions."""

    @property
    def newest(self) -> int:
        """The present version."""

    @property
    def undone(self) -> int:
        """How many steps were taken back so far: the same version may be another state after that."""

    @property
    def shards(self) -> KeptShards | None:
        """Of its optimizer; None where all peers hold all of it."""

    def state(self) -> Mapping[str, torch.Tensor]:
        """The present version, by name: what all peers hold of it."""


class KnownKeepers(NamedTuple):
    """The keepers of a run, as one server knows them.

    Attributes:
        own: those that keep its parts, in the order of the pieces.
        redundancy: what each of them keeps of a part.
        others: all others.
        near: the name of the one on its own host; empty where none is.
        every: they write every so many versions to disk; 0 where they write none.
    """

    own: Sequence[KeeperClient]
    redundancy: Redundancy
    others: Sequence[KeeperClient] = ()
    near: str = ""
    every: int = 0

    def writes(self, version: int) -> bool:
        """Whether a version is to be written to disk by them."""
        return self.every > 0 and version > 0 and version % self.every == 0

    @property
    def pieces(self) -> Sequence[tuple[int, KeeperClient]]:
        """Which piece of a part each of those that keep it has; copies are all the same one."""
        return [(place if self.redundancy.needed > 1 else 0, each) for place, each in enumerate(self.own)]

    @property
    def all(self) -> Mapping[str, KeeperClient]:
        """All of them, by name."""
        return {each.name: each for each in (*self.own, *self.others)}


class KeeperCopies:
    """One server's part in it; it is Kept, and told of every instruction.

    A version is put from the first instruction after its step on, and is there before the gradients of its iteration
    are reduced, by when it is known to be right; the first version of a view before any other instruction.

    Args:
        find_keepers: gives those of the run; another host's may take the place of one between two views.
        server: whose.
        depth: P.
        source: the versions.
        view: gives the view in which the server works.
        tell: tells the user something: a warning, or where a version was taken from.
        kept: told of every part that was put, with the names of the keepers that have it.
        rank: of the server.
    """

    def __init__(
        self,
        find_keepers: Callable[[], KnownKeepers],
        server: Server,
        depth: int,
        source: KeptStage,
        view: Callable[[], View],
        tell: Callable[[Literal["warning", "memory"], str], None],
        kept: Callable[[StatePart, Sequence[str]], None] = lambda _part, _keepers: None,
        rank: ServerRank = SOLE,
    ) -> None:
        self._find_keepers = find_keepers
        self._keepers = find_keepers()
        self._server = server
        self._depth = depth
        self._source = source
        self._view = view
        self._tell = tell
        self._kept = kept
        self._rank = rank
        self._snapshot: Snapshot | None = None
        self._begun: tuple[int, int, int] | None = None
        self._done: tuple[int, int] | None = None
        # With which version the present view began, by its epoch.
        self._first = -1, 0
        # Until when each keeper that was lost rests, and for how long.
        self._resting: dict[str, tuple[float, float]] = {}

    # While it trains.

    def before(self, iteration: int, instruction: Instruction) -> None:
        """See Hooks."""
        view = self._view()
        due = view.epoch, self._source.newest
        if due == self._done:
            return
        begun = (*due, self._source.undone)
        if begun != self._begun:
            self.halt()
            if self._first[0] != view.epoch:
                for each in self._keepers.own:
                    each.close()
                known, self._first, self._keepers = self._keepers.all, due, self._find_keepers()
                for name, each in self._keepers.all.items():
                    if name in known and known[name].address != each.address:
                        # A host that has booted again has another one.
                        self._resting.pop(name, None)
            pieces = [each for each in self._keepers.pieces if not self._rests(each[1].name)]
            if not pieces:
                self._done = due
                self._kept(self._part(view), ())
                return
            part, version = self._part(view), self._version(view)
            snapshot = Snapshot(pieces, self._keepers.redundancy, part, version)
            self._begun, self._snapshot = begun, snapshot
        first = self._done is None or self._done[0] != view.epoch
        if first or instruction.op is Op.REDUCE:
            self._kept(self._part(view), self._finish())
            self._done = due

    def after(self, iteration: int, instruction: Instruction, seconds: Callable[[], float]) -> None:
        """See Hooks."""

    def halt(self) -> None:
        """See Kept."""
        snapshot, self._snapshot, self._begun = self._snapshot, None, None
        if snapshot is not None:
            snapshot.give_up()

    def _part(self, view: View) -> StatePart:
        """Which part of the present version is this server's."""
        peers = view.peers(self._server.stage)
        number, (_, began) = peers.index(self._server), self._first
        needed, version = self._keepers.redundancy.needed, self._source.newest
        durable = self._keepers.writes(version)
        return StatePart(
            self._server.stage,
            view.epoch,
            version,
            number,
            len(peers),
            began,
            needed=needed,
            durable=durable,
            rank=self._rank.number,
            ranks=self._rank.size,
        )

    def _version(self, view: View) -> Version:
        """The present version, in the parts that the peers copy."""
        state, shards, peers = self._source.state(), self._source.shards, view.peers(self._server.stage)
        if shards is None:
            return cut_evenly(state, len(peers))
        return cut_by_shards(state, shards, [each.pipeline for each in peers])

    def _rests(self, name: str) -> bool:
        until, _ = self._resting.get(name, (0.0, 0.0))
        return time.monotonic() < until

    def _let_rest(self, name: str, warning: str) -> None:
        """A keeper was lost: said once, until it is tried again."""
        if not self._rests(name):
            self._tell("warning", warning)
        _, rest = self._resting.get(name, (0.0, REST / 2))
        self._resting[name] = time.monotonic() + 2 * rest, min(2 * rest, LONGEST_REST / 2)

    def _finish(self) -> list[str]:
        """Have the present version's part where it belongs, as far as that is possible; gives who has it."""
        snapshot, self._snapshot = self._snapshot, None
        assert snapshot is not None, "nothing was begun"
        lost = snapshot.finish()
        for keeper in self._keepers.own:
            error = lost.get(keeper.name)
            if error is not None:
                text = f"the state is not kept in memory by {keeper.name}: {error}; it is tried again later"
                self._let_rest(keeper.name, text)
            elif not self._rests(keeper.name):
                self._resting.pop(keeper.name, None)
        return [each.name for each in self._keepers.own if not self._rests(each.name)]

    # After a failure.

    def find_versions(self) -> tuple[tuple[int, ...], ...]:
        """See Kept."""
        whole = find_whole(self._copies())
        return tuple(tuple(whole.get(stage, ())) for stage in range(self._depth))

    def take_shards(self, version: Mapping[str, torch.Tensor], shards: Iterable[int]) -> None:
        """See Kept."""
        own = self._source.shards
        assert own is not None, "the optimizer has no shards"
        for shard in shards:
            own.take_pieces(shard, shard_of(version, shard))

    def fetch(self, step: int) -> Mapping[str, torch.Tensor]:
        """See Kept."""
        # Whoever did not answer when versions were looked for is waited for only where it is needed.
        for copies in map(self._copies, (True, False)):
            whole = find_whole(copies).get(self._server.stage, {}).get(step, ())
            parts = [each for each in whole if each.rank == self._rank.number]
            if parts:
                break
        else:
            raise ConnectionLost(f"no keeper has version {step} of stage {self._server.stage} any more")
        known = self._keepers
        fetching = Fetching(known.all, known.near, known.redundancy.pieces, partial(self._tell, "warning"))
        version, sources = fetching.fetch(step, parts, copies)
        text = f"version {step} of stage {self._server.stage} is taken from {' and '.join(sorted(sources))}"
        self._tell("memory", text)
        shards, cut = self._source.shards, version.shards
        if shards is not None and cut is not None and (cut.layers, cut.count) == (tuple(shards.layers), shards.count):
            return version.state
        # An earlier start of the run has kept it, whose optimizer was in shards, or was not.
        return recut(version, None if shards is None else outline_of(self._source.state(), shards))

    def _copies(self, awake: bool = False) -> list[Copy]:
        """What all keepers have that can be reached, or those that were not lost a moment ago."""
        keepers = [each for each in self._keepers.all.values() if not (awake and self._rests(each.name))]
        found: list[Copy] = []
        for keeper, answer in zip(keepers, ask_all(keepers), strict=True):
            if isinstance(answer, KeeperLost):
                self._let_rest(keeper.name, f"{keeper.name}: {answer}")
            else:
                found.extend(answer)
        return found


class Snapshot:
    """Copies a part straight from the tensors that train, which stay as they are until the next step.

    Args:
        keepers: who gets which piece of it.
        redundancy: into which pieces it is made.
        part: which.
        version: of which it is.
    """

    def __init__(
        self,
        keepers: Sequence[tuple[int, KeeperClient]],
        redundancy: Redundancy,
        part: StatePart,
        version: Version,
    ) -> None:
        self._keepers = keepers
        self._redundancy = redundancy
        self._part = part
        self._version = version
        self._lock = threading.Lock()
        self._deliveries: dict[int, dict[str, Delivery]] = {}
        self._given_up = threading.Event()
        self._checksums: Mapping[int, int] = {}
        self._lost: dict[str, KeeperLost] = {}
        self._thread = start_thread(on_own_device(self._copy), str(part))

    def finish(self) -> Mapping[str, KeeperLost]:
        """Copy what is left, wait until it has arrived, and say that it is right.

        Returns:
            The keepers that have not got it, by name, and why.
        """
        self._thread.join()
        for number, deliveries in self._deliveries.items():
            for each in deliveries.values():
                each.commit(self._checksums[number])
        # All of them answer meanwhile: the iteration waits for the slowest, and not for one after the other.
        for deliveries in self._deliveries.values():
            for name, each in deliveries.items():
                try:
                    each.confirm()
                except KeeperLost as error:
                    self._lost[name] = error
        return self._lost

    def give_up(self) -> None:
        """The version is about to change, or was not right; no tensor is read after this."""
        with self._lock:
            self._given_up.set()
            for deliveries in self._deliveries.values():
                for each in deliveries.values():
                    each.give_up()
        self._thread.join()

    def _copy(self) -> None:
        size = piece_size(len(self._version.range_of(self._part)), self._redundancy.needed)
        head = self._version.describe(self._part.version)
        for number, keeper in self._keepers:
            if self._given_up.is_set():
                break  # each that is gone would take its time
            try:
                delivery = keeper.offer(msgspec.structs.replace(self._part, piece=number), head, size)
            except KeeperLost as error:
                self._lost[keeper.name] = error
                continue
            with self._lock:
                self._deliveries.setdefault(number, {})[keeper.name] = delivery
                if self._given_up.is_set():
                    delivery.give_up()
        deliveries = {number: [*each.values()] for number, each in self._deliveries.items()}
        self._checksums = send(deliveries, head, blocks_of(self._version, self._part, self._redundancy))
