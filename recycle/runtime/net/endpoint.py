"""Where a run's store is."""

from typing import NamedTuple

from recycle.control.tcp_store import LOOPBACK, TorchStore


class Endpoint(NamedTuple):
    """Where the run's store is, and how to be let in.

    Attributes:
        host: of the store.
        port: of the store.
        token: the run's.
        address: of this machine, where other servers reach it.
        prefix: of the run's keys, in a store that is not its alone.
    """

    host: str
    port: int
    token: str
    address: str = LOOPBACK
    prefix: str = ""

    def connect(self, patience: float = 30.0) -> TorchStore:
        """A connection to the store.

        Args:
            patience: how long to try, in seconds.

        Raises:
            StoreLost: it does not answer.
        """
        return TorchStore(self.host, self.port, patience, self.prefix)
