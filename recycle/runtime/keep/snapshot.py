"""A snapshot: a server's part of a version on its way to keepers, on a thread of its own while training goes on."""

import threading
from collections.abc import Mapping, Sequence

import torch

from recycle.runtime.join.handover import describe_state
from recycle.runtime.keep.layout import bytes_of, count_bytes, in_order, range_of
from recycle.state.client import Delivery, KeeperClient
from recycle.state.errors import KeeperLost
from recycle.state.ladder import StatePart


class Snapshot:
    """Copies a part straight from the tensors that train, which stay as they are until the next step.

    Args:
        keepers: who gets it.
        part: which.
        state: the version, by name.
    """

    def __init__(self, keepers: Sequence[KeeperClient], part: StatePart, state: Mapping[str, torch.Tensor]) -> None:
        self._keepers = keepers
        self._part = part
        self._state = in_order(state)
        self._lock = threading.Lock()
        self._deliveries: list[Delivery] = []
        self._given_up = False
        # What was sent to its end, and what each keeper has to say that has not got it.
        self._sent: list[Delivery] = []
        self._errors: list[KeeperLost] = []
        self._thread = threading.Thread(target=self._run, name=str(part), daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until it has arrived, and say that it is right.

        Raises:
            KeeperLost: a keeper has not got it; those that can be reached have.
        """
        self._thread.join()
        for each in self._sent:
            try:
                each.commit()
            except KeeperLost as error:
                self._errors.append(error)
        for each in self._deliveries:
            each.give_up()
        if self._errors:
            raise self._errors[0]
        assert len(self._sent) == len(self._keepers), f"{self._part} was not sent to its end"

    def give_up(self) -> None:
        """The version is about to change, or was not right; no tensor is read after this."""
        with self._lock:
            self._given_up = True
            for each in self._deliveries:
                each.give_up()
        self._thread.join()

    def _run(self) -> None:
        wanted = range_of(self._part, count_bytes(self._state))
        head = describe_state(self._part.version, self._state)
        for keeper in self._keepers:
            try:
                delivery = keeper.offer(self._part, head, len(wanted))
                with self._lock:
                    self._deliveries.append(delivery)
                    if self._given_up:
                        delivery.give_up()
                delivery.write(bytes_of(self._state, wanted))
                self._sent.append(delivery)
            except KeeperLost as error:
                self._errors.append(error)
