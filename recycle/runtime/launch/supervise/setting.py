"""What a supervised run is, and what its processes need to take part."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.doors import Address, HostDoor
from recycle.control.membership.durations import Durations
from recycle.control.membership.participant import Participant, participants_of
from recycle.control.membership.view import SOLE, ServerRank, View
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.errors import UserError
from recycle.faults.menu import Faults
from recycle.job import Job, Server
from recycle.runtime.launch.meet.greetings import Hello
from recycle.runtime.launch.meet.keepers import KeeperSetting
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.net.endpoint import Endpoint
from recycle.state.directory import KeeperDirectory


class RunAccess(NamedTuple):
    """What a process of the run needs to take part.

    Attributes:
        endpoint: of the store.
        watch: where the launcher listens.
        rank: which of its server's the process is.
    """

    endpoint: Endpoint
    watch: Address
    rank: ServerRank = SOLE

    @property
    def ports(self) -> frozenset[int]:
        """Of connections that are the run's own, to the store and to the launcher."""
        return self.endpoint.ports | (frozenset() if isinstance(self.watch, HostDoor) else {self.watch[1]})


class Setting(NamedTuple):
    """What a supervised run is.

    Attributes:
        job: what is trained.
        view: who begins.
        step: where training begins.
        restore: whether everybody begins from a checkpoint of that step, or afresh.
        fingerprint: what must be the same in all processes.
        durations: how long is waited for what.
        host: the address that the launcher binds to, and the store where the launcher serves it alone.
        faults: what goes wrong; the launcher's part of it is done here.
        folder: of the run.
        durable: whether a version is somewhere else than with the servers by now: in a checkpoint, or with a keeper.
        restarts: how often a server that has crashed is started again, within an hour.
        meeting: where the launcher meets those of the processes that it does not start; None where it starts all.
        keeping: how the state is kept in memory; None where it is not.
        ranks: of each server.
        cluster: where the store is in etcd; None where it is torchrun's, or the launcher serves it.
    """

    job: Job
    view: View
    step: int
    restore: Literal["memory", "checkpoint"]
    fingerprint: dict[str, str]
    durations: Durations
    host: str
    faults: Faults
    folder: Path
    durable: Callable[[], bool]
    restarts: int = 0
    meeting: Rendezvous | None = None
    keeping: KeeperSetting | None = None
    ranks: int = 1
    cluster: EtcdCluster | None = None

    @property
    def address(self) -> str | None:
        """Where processes of other hosts reach this one; None if the launcher starts all, on this machine."""
        return None if self.meeting is None and self.host == LOOPBACK else self.host

    @property
    def everybody(self) -> tuple[Participant, ...]:
        """Who begins, by the rank in the order of which they are started apart."""
        return participants_of(self.view.members, self.ranks)

    @property
    def first_view(self) -> View:
        """The members that begin, once all processes have come: in a view later than any of which something is kept."""
        kept = 0 if self.keeping is None else self.keeping.slot.offer.epoch
        there = 0 if self.meeting is None else self.meeting.epoch
        return self.view._replace(epoch=max(self.view.epoch, kept, there))

    @property
    def store_silence(self) -> float:
        """Seconds after which a host that tells the store nothing is dead for who hears of it nowhere else."""
        return self.durations.silence if self.cluster is None else 2 * self.durations.rare_beat

    @property
    def servers(self) -> list[Server]:
        """Theirs, in the same order."""
        return [each.member.server for each in self.everybody]

    @property
    def own(self) -> tuple[Participant, ...]:
        """Whom the launcher starts."""
        return self.everybody if self.meeting is None else (self.everybody[self.meeting.start.rank],)

    def direct_keepers(self, keeping: KeeperSetting) -> KeeperDirectory:
        """The directory of the run's keepers, once all processes have come.

        Args:
            keeping: how the state is kept in memory.

        Raises:
            UserError: a host is missing for it, or has not got the memory. All who came are told.
        """
        if self.meeting is None:
            return keeping.direct(self.everybody, [Hello(socket.gethostname(), "", self.host, {}, keeping.slot.offer)])
        try:
            return keeping.direct(self.everybody, self.meeting.hellos)
        except UserError as error:
            self.meeting.refuse(str(error))
            raise

    def endpoint(self, port: int, token: str) -> Endpoint:
        """Where the store is.

        Args:
            port: of a store that the launcher serves alone.
            token: the run's.
        """
        if self.meeting is not None:
            return self.meeting.endpoint(token)
        return Endpoint(self.host, port, token, self.host, cluster=self.cluster)
