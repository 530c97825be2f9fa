"""The meeting of processes that were started apart: they compare what they are before a run, and take leave after."""

import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import _TERMINAL_STATE_SYNC_ID
from torch.distributed.elastic.utils.store import _barrier_nonblocking

from recycle.control.board import Board
from recycle.control.errors import ControlError, StoreLost
from recycle.control.etcd_cluster import EtcdCluster
from recycle.control.etcd_store import EtcdStore
from recycle.control.joinfile import JOIN_FILE, JoinFile, digest_of
from recycle.control.messages import differs
from recycle.control.store import Store
from recycle.control.tcp_store import TorchStore
from recycle.errors import UserError
from recycle.runtime.errors import RunError
from recycle.runtime.launch.greetings import (
    Hello,
    KeeperOffer,
    Welcome,
    lonely_stages,
    other_release,
    release,
    why_not,
)
from recycle.runtime.launch.start import Start
from recycle.runtime.net.endpoint import Endpoint

LOOK = 0.1
"""Seconds between two looks."""

FAREWELL, GRACE = 3.0, 1.0
"""Seconds that the first process waits at the end for those who came to it, and for all others: these were lost before,
and who still runs looks for the end twice in that time."""


class RollCall:
    """One process's part in it.

    Args:
        start: how it was started.
        address: where others reach this machine.
        patience: how long to wait for the others, in seconds.
        cluster: where the processes meet in etcd; None for the store at the first of them.

    Attributes:
        start: as above.
        address: as above.
        cluster: as above.
        keeper: what this process offers for its host's keeper.
        hellos: of all processes, by rank, once they have come.
        is_late: whether the run had begun before this process came, as on a host that takes the place of another one.
    """

    def __init__(self, start: Start, address: str, patience: float, cluster: EtcdCluster | None = None) -> None:
        self.start = start
        self.address = address
        self.cluster = cluster
        self._patience = patience
        self._store: Store | None = None
        self.keeper = KeeperOffer()
        self.hellos: list[Hello] = []
        self.is_late = False

    def endpoint(self, token: str) -> Endpoint:
        """Where the run's store is."""
        start = self.start
        return Endpoint(start.host, start.port, token, self.address, f"{start.prefix}/members", self.cluster)

    # The first process.

    def receive(self) -> None:
        """Wait for all others.

        Raises:
            RunError: they cannot train together, or one has not come. All who came are told.
        """
        self.greet()
        self.hellos = [self._await_hello(rank) for rank in range(self.start.count)]
        refusal = why_not(self.hellos)
        if refusal:
            self.refuse(refusal)
            raise RunError(refusal)

    def risks(self, stages: Sequence[Collection[int]], *, kept: bool = False) -> list[str]:
        """What the loss of one host would end, or hold up.

        Args:
            stages: that each process's server holds, by rank.
            kept: whether the memory of other hosts has the state of whichever is lost.
        """
        end = (
            "and if that is lost, all wait for new servers, which get the state from memory"
            if kept
            else "whose loss ends the run: start ranks in another order"
        )
        hosts = [each.host for each in self.hellos]
        found = [
            f"all servers of stage {stage} are on {host}, {end}" for stage, host in lonely_stages(stages, hosts).items()
        ]
        if self.cluster is None and len(set(hosts)) > 1:
            found.append(
                f"the store is on {hosts[0]}: when that host is lost the others train on, and end with the next "
                "failure; with --store etcd://HOST:PORT,... any host may be lost"
            )
        return found

    def admit(self, token: str, watch: tuple[str, int]) -> None:
        """Let all others in.

        Args:
            token: the run's.
            watch: where this process listens.
        """
        self._write("admission", Welcome(digest_of(token), watch, release()))

    @contextmanager
    def telling_others(self) -> Iterator[None]:
        """If an error ends this process before there is a run, tell it to all others that wait for one."""
        try:
            yield
        except UserError as error:
            # Where this process has to make the store first, there may be none.
            if self.start.served or self.cluster is not None:
                self.refuse(str(error))
            raise

    def refuse(self, reason: str) -> None:
        """Tell all others that there is no run."""
        with suppress(ControlError, StoreLost):
            self._write("admission", Welcome("", ("", 0), release(), reason))

    def dismiss(self, expected: Collection[int]) -> None:
        """After the end of the run, wait a moment for the others; nobody waits for hosts that are dead.

        Args:
            expected: the ranks of those who came to the end.
        """
        ends: dict[int, int] = {}
        everybody, begin = range(self.start.count), time.monotonic()
        with suppress(ControlError, StoreLost, msgspec.DecodeError):
            while len(ends) < self.start.count:
                passed = time.monotonic() - begin
                if passed > FAREWELL or (passed > GRACE and ends.keys() >= set(expected)):
                    break
                time.sleep(LOOK)
                told = self._reach().get_many([f"left/{rank}" for rank in everybody])
                ends = {rank: msgspec.json.decode(each, type=int) for rank, each in enumerate(told) if each is not None}
            if self.start.job and self.start.served:
                self._check_in_for(self._hopeless(ends))

    def _hopeless(self, ends: Mapping[int, int]) -> int:
        """How many of torchrun's nodes will not say themselves that all their processes have ended well."""
        by_node: dict[str, list[bool]] = defaultdict(list)
        told = self._reach().get_many([f"hello/{rank}" for rank in range(self.start.count)])
        for rank, hello in enumerate(told):
            if hello is not None:
                by_node[msgspec.json.decode(hello, type=Hello).node].append(ends.get(rank) == 0)
        return sum(not all(ended) for ended in by_node.values())

    def _check_in_for(self, nodes: int) -> None:
        """Torchrun waits five minutes at its end until all its nodes are there. The dead are, as soon as we say so."""
        start = self.start
        store = PrefixStore(start.job, TCPStore(start.host, start.port, is_master=False, wait_for_workers=False))
        for _ in range(nodes):
            _barrier_nonblocking(store, start.nodes, _TERMINAL_STATE_SYNC_ID)

    def _await_hello(self, rank: int) -> Hello:
        found = self._wait(f"hello/{rank}")
        if found is None:
            refusal = (
                f"process {rank} of {self.start.count} has not come within {self._patience:g} s: see what its host "
                "says, and start all again"
            )
            self.refuse(refusal)
            raise RunError(refusal)
        try:
            return msgspec.json.decode(found, type=Hello)
        except msgspec.DecodeError:
            return Hello(f"the host of process {rank}", "", "", {"recycle": "another release"})

    # The others.

    def attend(self) -> Welcome:
        """Come to the meeting.

        Raises:
            RunError: there is no run.
            ControlError: nobody answers.
        """
        self.is_late = self._reach().get("admission") is not None
        self.greet()
        found = self._wait("admission")
        if found is None:
            raise RunError(
                f"the first process, on {self.start.host}, has not begun a run within {self._patience:g} s: see what "
                "it says, and start all again"
            )
        admission = self._read(found)
        if admission.refusal:
            raise RunError(admission.refusal)
        difference = differs(release(), admission.release)
        if difference:
            raise RunError(other_release(difference, socket.gethostname(), self.start.host))
        return admission

    def _read(self, found: bytes) -> Welcome:
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(found, type=Welcome)
        return Welcome("", ("", 0), {"recycle": "another release"})

    def leave(self, status: int) -> None:
        """Say that this process ends.

        Args:
            status: with which exit status.
        """
        with suppress(ControlError, StoreLost):
            self._write(f"left/{self.start.rank}", status)

    def first_has_left(self) -> bool:
        """Whether the first process has, at the end of the run, within a moment."""
        with suppress(ControlError, StoreLost):
            return self._reach().wait("left/0", FAREWELL) is not None
        return False

    # All.

    def greet(self) -> None:
        """Say what this process is, and where."""
        hello = Hello(socket.gethostname(), self.start.node, self.address, release(), self.keeper)
        self._write(f"hello/{self.start.rank}", hello)

    def _write(self, key: str, content: object) -> None:
        self._reach().set(key, msgspec.json.encode(content))

    def _wait(self, key: str) -> bytes | None:
        store, deadline = self._reach(), time.monotonic() + self._patience
        # In short waits, between which a signal is heard.
        while store.wait(key, min(1.0, self._patience)) is None:
            if time.monotonic() > deadline:
                return None
        return store.get(key)

    def _reach(self) -> Store:
        start, prefix = self.start, f"{self.start.prefix}/start"
        if self._store is None and self.cluster is not None:
            self._store = EtcdStore(self.cluster, prefix, near=self.address)
        elif self._store is None:
            self._store = await_store(lambda: TorchStore(start.host, start.port, prefix=prefix), start, self._patience)
        return self._store


def await_store(connect: Callable[[], TorchStore], start: Start, patience: float) -> TorchStore:
    """A connection to a store that may not be there yet.

    Raises:
        ControlError: it is not there after so many seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return connect()
        except StoreLost as error:
            if time.monotonic() > deadline:
                raise ControlError(
                    f"the store at {start.host}:{start.port} does not answer within {patience:g} s: see whether the "
                    "first process runs, and whether MASTER_ADDR and MASTER_PORT name its host and a free port there"
                ) from error
            time.sleep(LOOK)


def shared_token(folder: Path, digest: str, first: str) -> str:
    """The token of the run that the first process has begun, from the folder that all share.

    Args:
        folder: of the run.
        digest: of the token.
        first: the first process's host.

    Raises:
        RunError: it is another folder.
    """
    path = folder / JOIN_FILE
    token = JoinFile.read(path).token if path.exists() else ""
    if digest_of(token) != digest:
        raise RunError(
            f"{folder}: it is not the folder that the first process, on {first}, writes to; give --output a folder "
            "that all hosts share"
        )
    return token


def require_same(fingerprint: dict[str, str], endpoint: Endpoint) -> None:
    """Compare what this process would train with what the run does.

    Args:
        fingerprint: what must be the same, by name.
        endpoint: of the run's store.

    Raises:
        RunError: they differ.
    """
    description = Board(endpoint.connect(), endpoint.token).description()
    assert description is not None, "who admits has described the run"
    difference = differs(fingerprint, description.fingerprint)
    if difference:
        raise RunError(f"{socket.gethostname()}: {difference}: all hosts must train the same model on the same text")
