"""Where a run's store is."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from recycle.control.board.board import Board
from recycle.control.host.agent import HostAccess
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.doors import HostDoor
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.control.store.etcd_store import EtcdStore
from recycle.control.store.local_store import LocalStore, door_of_store
from recycle.control.store.relay import door_of, run_relay
from recycle.control.store.relayed_store import RelayedStore
from recycle.control.store.store import Store
from recycle.control.store.tcp_store import TorchStore


class Endpoint(NamedTuple):
    """Where the run's store is, and how to be let in.

    Attributes:
        host: of the store, where the run serves its own.
        port: of that store; 0 if it is on this machine, at a socket that no other one reaches.
        token: the run's.
        address: of this machine, where other servers reach it.
        prefix: of the run's keys, in a store that is not its alone.
        cluster: where the store is in etcd; None where the run serves its own.
    """

    host: str
    port: int
    token: str
    address: str = LOOPBACK
    prefix: str = ""
    cluster: EtcdCluster | None = None

    @property
    def ports(self) -> frozenset[int]:
        """Of the store, on whichever machines; none if it has none."""
        used = [self.port] if self.cluster is None else [port for _, port in self.cluster.members]
        return frozenset(each for each in used if each)

    def connect(self, patience: float = 30.0) -> Store:
        """A connection to the store; to etcd, through this host's relay while there is one.

        Args:
            patience: how long to try, in seconds; etcd's own changes take time, so there it is fixed.

        Raises:
            StoreLost: it does not answer.
        """
        if self.cluster is not None:
            return RelayedStore(self._door(), self._opener(self.cluster))
        if not self.port:
            return LocalStore(door_of_store(self.token), patience)
        return TorchStore(self.host, self.port, patience, self.prefix)

    def board(self, patience: float = 30.0) -> Board:
        """What members write in the store, over a connection of its own.

        Args:
            patience: see ``connect``.

        Raises:
            StoreLost: the store does not answer.
        """
        return Board(self.connect(patience), self.token)

    def connect_alone(self) -> Store:
        """The same through no relay: for who has to tell of a host whatever becomes of its other processes.

        Raises:
            StoreLost: it does not answer.
        """
        if self.cluster is not None:
            return self._opener(self.cluster)()
        return self.connect()

    def host_access(self, begin: Callable[[], None]) -> HostAccess | None:
        """How the agent is reached that speaks for this host; None where the run has one host, and a store of its own.

        Args:
            begin: what the host's relay does first in its process.
        """
        if self.cluster is None:
            return None if self.address == LOOPBACK else HostAccess(self.address)
        opener = self._opener(self.cluster)

        def relay() -> None:
            begin()
            asyncio.run(run_relay(self._door(), opener))

        return HostAccess(self.address, relay)

    def _door(self) -> HostDoor:
        return door_of(self.token, self.prefix)

    def _opener(self, cluster: EtcdCluster) -> Callable[[], EtcdStore]:
        return lambda: EtcdStore(cluster, self.prefix, near=self.address)
