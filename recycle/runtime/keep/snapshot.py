"""A snapshot: a server's part of a version on its way to keepers, on a thread of its own while training goes on."""

import threading
from collections.abc import Mapping, Sequence

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
        self._given_up = False
        self._checksums: Mapping[int, int] = {}
        self._lost: dict[str, KeeperLost] = {}
        self._thread = threading.Thread(target=self._copy, name=str(part), daemon=True)
        self._thread.start()

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
            self._given_up = True
            for deliveries in self._deliveries.values():
                for each in deliveries.values():
                    each.give_up()
        self._thread.join()

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
        self._checksums = send(deliveries, head, blocks_of(self._version, self._part, self._redundancy))
