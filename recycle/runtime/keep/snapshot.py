"""A snapshot: a server's part of a version on its way to keepers, on a thread of its own while training goes on."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from recycle.runtime.keep.layout import Version
from recycle.runtime.keep.pieces import blocks_of
from recycle.state.client import Delivery, KeeperClient, send
from recycle.state.errors import KeeperLost
from recycle.state.ladder import StatePart
from recycle.state.redundancy import Redundancy, piece_size


class Snapshot:
    """Copies a part straight from the tensors that train, which stay as they are until the next step.

    Args:
        keepers: who gets which piece of it.
        redundancy: into which pieces it is made.
        part: which.
        version: of which it is.
        turns: in so many portions it is copied, each when it is let; 0 to copy it as soon as it can be.
    """

    def __init__(
        self,
        keepers: Sequence[tuple[int, KeeperClient]],
        redundancy: Redundancy,
        part: StatePart,
        version: Version,
        turns: int = 0,
    ) -> None:
        self._keepers = keepers
        self._redundancy = redundancy
        self._part = part
        self._version = version
        self._lock = threading.Lock()
        self._deliveries: dict[int, dict[str, Delivery]] = {}
        self._given_up = False
        self._checksums: Mapping[int, int] = {}
        self._lost: dict[str, KeeperLost] = {}
        self._turns, self._let = turns, 0
        self._turn = threading.Condition()
        # How far it may go and how far it has come, in bytes of all pieces.
        different = 1 if redundancy.needed == 1 else redundancy.pieces
        self._total = different * piece_size(len(version.range_of(part)), redundancy.needed)
        self._allowed = 0 if turns else self._total
        self._copied = 0
        self._over = False
        self._thread = threading.Thread(target=self._run, name=str(part), daemon=True)
        self._thread.start()

    def let(self) -> None:
        """Copy the next portion, and wait until it has arrived; nothing where it is copied without turns."""
        if not self._turns:
            return
        with self._turn:
            self._let += 1
            self._allowed = min(self._total, -(-self._total * self._let // self._turns))
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._copied >= self._allowed or self._over)

    def finish(self) -> Mapping[str, KeeperLost]:
        """Copy what is left, wait until it has arrived, and say that it is right.

        Returns:
            The keepers that have not got it, by name, and why.
        """
        self._let_all()
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
            self._given_up = True
            for deliveries in self._deliveries.values():
                for each in deliveries.values():
                    each.give_up()
        self._let_all()
        self._thread.join()

    def _let_all(self) -> None:
        with self._turn:
            self._allowed = self._total
            self._turn.notify_all()

    def _run(self) -> None:
        try:
            self._copy()
        finally:
            with self._turn:
                self._over = True
                self._turn.notify_all()

    def _in_turns(
        self, blocks: Iterable[tuple[int, Sequence[memoryview]]]
    ) -> Iterator[tuple[int, Sequence[memoryview]]]:
        """Blocks, each when it may be copied; it is when the next one is asked for."""
        for number, block in blocks:
            with self._turn:
                self._turn.wait_for(lambda: self._copied < self._allowed)
            yield number, block
            with self._turn:
                self._copied += sum(map(len, block))
                self._turn.notify_all()

    def _copy(self) -> None:
        size = piece_size(len(self._version.range_of(self._part)), self._redundancy.needed)
        head = self._version.describe(self._part.version)
        for number, keeper in self._keepers:
            try:
                delivery = keeper.offer(msgspec.structs.replace(self._part, piece=number), head, size)
            except KeeperLost as error:
                self._lost[keeper.name] = error
                continue
            with self._lock:
                self._deliveries.setdefault(number, {})[keeper.name] = delivery
                if self._given_up:
                    delivery.give_up()
        deliveries = {number: [*each.values()] for number, each in self._deliveries.items()}
        blocks = blocks_of(self._version, self._part, self._redundancy)
        self._checksums = send(deliveries, head, self._in_turns(blocks))
