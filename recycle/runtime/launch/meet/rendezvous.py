"""The meeting of processes that were started apart: they compare what they are before a run, and take leave after."""

import secrets
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import _TERMINAL_STATE_SYNC_ID
from torch.distributed.elastic.utils.store import _barrier_nonblocking

from recycle.control.board.joinfile import digest_of
from recycle.control.host.waiting_notice import WaitingNotice
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.membership.messages import differs
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.control.store.etcd_store import EtcdStore
from recycle.control.store.sealed_values import SealedValues
from recycle.control.store.store import Store
from recycle.control.store.tcp_store import TorchStore
from recycle.errors import EndedAtOnce, UserError
from recycle.runtime.errors import RunError
from recycle.runtime.launch.meet.greetings import (
    Hello,
    KeeperOffer,
    Welcome,
    absent,
    other_count,
    other_release,
    other_secret,
    read_hello,
    read_welcome,
    release,
    why_not,
)
from recycle.runtime.launch.meet.hosted import LOOK, await_store
from recycle.runtime.launch.meet.secret import corner_of, token_of
from recycle.runtime.launch.meet.start import Start
from recycle.runtime.net.endpoint import Endpoint
from recycle.threads import NoneLeft

FAREWELL, GRACE = 3.0, 1.0
"""Seconds for which those who came to the end of the run are waited for there, and all others: these were lost before,
and who still runs looks for the end twice in that time."""

TOLD = 10.0
"""Seconds for which the first process waits for those who are on their way, where there is no run, and for those who
wait for the end of one without a server in it: its store may end with it."""

BEHIND = 30.0
"""Seconds for which the others wait longer than the first process: it knows which of them has not come, and says so."""

TELLING = 20.0
"""Seconds for which a process that cannot take part looks for somebody to tell."""


class NotAdmitted(RunError):
    """This process cannot take part, as others know that have said so."""


class Rendezvous:
    """One process's part in it.

    Args:
        start: how it was started.
        patience: how long to wait for the others, in seconds.
        cluster: where the processes meet in etcd; None for the store at the first of them.
        say: tells the user for whom this process waits.
        secret: that all these processes have; empty where nobody else is on their network.
        remedy: what the user has to do so that all have the same.

    Attributes:
        start: as above.
        say: as above.
        address: where others reach this machine, as it is chosen.
        cluster: as above.
        keeper: what this process offers for its host's keeper.
        hellos: of all processes, by rank, once they have come.
        has_store: whether there is a store yet; that at the first process has to be made.
        is_late: whether the run had begun before this process came, as on a host that takes the place of another one.
        nonce: of which the run's token is made with the secret, where they agree on it here.
    """

    def __init__(
        self,
        start: Start,
        patience: float,
        cluster: EtcdCluster | None = None,
        say: Callable[[str], None] = lambda _: None,
        secret: str = "",
        remedy: str = "give all the same",
    ) -> None:
        self.start = start
        self.say = say
        self.address = LOOPBACK
        self.cluster = cluster
        self._patience = patience
        self._identity = secrets.token_hex(8)
        self._secret = secret
        self._remedy = remedy
        self._corner = corner_of(secret)
        self.nonce = ""
        self._store: SealedValues | None = None
        self._stays = False
        self.keeper = KeeperOffer()
        self.hellos: list[Hello] = []
        self._has_admitted = False
        self.has_store = start.served or cluster is not None
        self.is_late = False

    def endpoint(self, token: str) -> Endpoint:
        """Where the run's store is."""
        start = self.start
        return Endpoint(start.host, start.port, token, self.address, f"{start.prefix}/members", self.cluster)

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts of all processes, by rank, once they have come."""
        return [each.host for each in self.hellos]

    @property
    def epoch(self) -> int:
        """The first view of which no process's host has anything in memory, once they have come."""
        return max((each.keeper.epoch for each in self.hellos), default=0)

    # The first process.

    def receive(self) -> None:
        """Wait for all others.

        Raises:
            RunError: they cannot train together, or one has not come. All who came are told.
        """
        self.greet()
        awaiting, deadline = WaitingNotice(self.say), time.monotonic() + self._patience
        self.hellos = [self._await_hello(rank, awaiting, deadline) for rank in range(self.start.count)]
        # One that has come may have given up since.
        self._heed()
        refusal = why_not(self.hellos)
        if refusal:
            self.refuse(refusal)
            raise RunError(refusal)

    def admit(self, token: str, watch: tuple[str, int]) -> None:
        """Let all others in.

        Args:
            token: the run's.
            watch: where this process listens.
        """
        self._write("admission", Welcome(digest_of(token), watch, release(), count=self.start.count))
        self._has_admitted = True

    def refuse(self, reason: str, *, patient: bool = True) -> None:
        """Tell all others that there is no run.

        Args:
            reason: why.
            patient: whether those who have not come yet are waited for.
        """
        with suppress(ControlError, StoreLost):
            self._write("admission", Welcome("", ("", 0), release(), reason))
            self._await_told(patient=patient)

    def _await_told(self, *, patient: bool) -> None:
        """Wait a moment until the others have heard that there is no run."""
        others, deadline = range(1, self.start.count), time.monotonic() + TOLD
        while time.monotonic() < deadline:
            told = self._read([f"{key}/{rank}" for rank in others for key in ("hello", "left")])
            pairs = zip(told[::2], told[1::2], strict=True)
            if all(left is not None or (came is None and not patient) for came, left in pairs):
                return
            time.sleep(LOOK)

    def dismiss(self, expected: Collection[int]) -> None:
        """After the end of the run, wait a moment for the others; nobody waits for hosts that are dead.

        Args:
            expected: the ranks of those who came to the end.
        """
        with suppress(ControlError, StoreLost, msgspec.DecodeError):
            ends = self._await_ends(expected)
            if self.start.job and self.start.served:
                self._check_in_for(self._hopeless(ends))

    def _hopeless(self, ends: Mapping[int, int]) -> int:
        """How many of torchrun's nodes will not say themselves that all their processes have ended well."""
        by_node: dict[str, list[bool]] = defaultdict(list)
        told = self._read([f"hello/{rank}" for rank in range(self.start.count)])
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

    def _await_hello(self, rank: int, awaiting: WaitingNotice, deadline: float) -> Hello:
        found = self._wait(f"hello/{rank}", awaiting, deadline)
        if found is None:
            refusal = f"{self._absent(f' within {self._patience:g} s')}; see what their hosts say, and start all again"
            self.refuse(refusal, patient=False)
            raise RunError(refusal)
        return read_hello(found, rank)

    def _absent(self, within: str = "") -> str:
        """Who has not come, for the others as well; in the first process."""
        start = self.start
        found = self._read([f"hello/{rank}" for rank in range(start.count)])
        text = (
            absent(start, [rank for rank, each in enumerate(found) if each is None], within) + self._with_other_secret()
        )
        self._reach().write(self._at("absent"), text.encode())
        return text

    def _whom(self) -> str:
        """For whom this process waits, and in any but the first one for whom that does."""
        waits = f"process {self.start.rank} waits"
        if self.start.rank == 0:
            return f"{waits}: {self._absent()}"
        hello, told = self._read(["hello/0", "absent"])
        if hello is None:
            return f"{waits}: {absent(self.start, [0])}{self._with_other_secret()}"
        told = told or b"it prepares the run"
        return f"{waits} for the first one, on {read_hello(hello, 0).host}: {told.decode(errors='replace')}"

    def _with_other_secret(self) -> str:
        """What is said if processes have come with another secret."""
        come = self._reach().plain.get_many([f"come/{rank}" for rank in range(self.start.count)])
        others = [rank for rank, corner in enumerate(come) if corner not in (None, self._corner.encode())]
        return f"; {other_secret(others, self._remedy)}" if others else ""

    # The others.

    def attend(self) -> Welcome:
        """Come to the meeting.

        Raises:
            RunError: there is no run.
            ControlError: nobody answers.
        """
        found = self._reach().read(self._at("admission"), bytes)
        self.is_late = found is not None and not read_welcome(found).refusal
        if found is None:
            self.greet()
            found = self._await_admission()
        if found is None:
            reason = (
                f"the first process, on {self.start.host}, has not begun a run: see what it says, and start all again"
                f"{self._with_other_secret()}"
            )
            self._withdraw(reason)
            raise RunError(reason)
        admission = read_welcome(found)
        if admission.refusal:
            raise self._refused(admission.refusal)
        host, first = socket.gethostname(), self.start.host
        if difference := differs(release(), admission.release):
            raise RunError(other_release(difference, host, first))
        if admission.count != self.start.count:
            raise RunError(other_count(self.start.count, host, admission.count, first))
        if self.is_late:
            self.greet()
        return admission

    def _await_admission(self) -> bytes | None:
        """What the first process says in the end, which waits for all others from when it comes."""
        awaiting = WaitingNotice(self.say)
        if self._wait("hello/0", awaiting) is None:
            return None
        return self._wait("admission", awaiting, time.monotonic() + self._patience + BEHIND)

    def stay(self) -> None:
        """Say that this process waits for the end of the run, though its server is dead.

        Another process may have come for that server, and has a farewell of its own.
        """
        self._stays = True
        with suppress(ControlError, StoreLost):
            self._write(f"stays/{self.start.rank}", True)

    def leave(self, status: int) -> None:
        """Say that this process ends.

        Args:
            status: with which exit status.
        """
        with suppress(ControlError, StoreLost):
            self._write(f"left/{self.start.rank}", status)
            if self._stays:
                self._write(f"stays/{self.start.rank}", False)

    def first_is_gone(self, expected: Collection[int]) -> bool:
        """After the end of the run, wait a moment for the others, for which they may have to write in the store.

        Args:
            expected: the ranks of those who came to the end.

        Returns:
            Whether the first process is not among them, nor has waited for them.
        """
        with suppress(ControlError, StoreLost, msgspec.DecodeError):
            return self._await_ends({0, *expected}).get(0) != 0
        return True

    # All.

    def _await_ends(self, expected: Collection[int]) -> dict[int, int]:
        """With which status everybody has ended who does so within a moment, by rank."""
        everybody, begin = range(self.start.count), time.monotonic()
        while True:
            told = self._read([f"{key}/{rank}" for rank in everybody for key in ("left", "stays")])
            ends = {
                rank: msgspec.json.decode(each, type=int) for rank, each in enumerate(told[::2]) if each is not None
            }
            stay = any(msgspec.json.decode(each, type=bool) for each in told[1::2] if each is not None)
            passed = time.monotonic() - begin
            enough = len(ends) == self.start.count or (passed > GRACE and ends.keys() >= set(expected))
            if passed > TOLD or (not stay and (enough or passed > FAREWELL)):
                return ends
            time.sleep(LOOK)

    def is_over(self) -> bool:
        """Whether all were let in already, as where the first process comes again."""
        found = self._reach().read(self._at("admission"), bytes)
        return found is not None and not read_welcome(found).refusal

    def greet(self) -> None:
        """Say what this process is, and where.

        Raises:
            RunError: another one has come in its place.
        """
        start, identity = self.start, self._identity
        hello = Hello(
            socket.gethostname(), start.node, self.address, release(), self.keeper, identity, self.start.count
        )
        key, said = f"hello/{start.rank}", msgspec.json.encode(hello)
        found = self._reach().compare_set(self._at(key), b"", said)
        if found == said:
            return
        other = read_hello(found, start.rank)
        # Of a run that goes on it may be one that has died.
        if other.identity != identity and not self.is_late:
            raise NotAdmitted(
                f"process {start.rank} has come already, on {other.host}: where that is another job's, give this one a "
                "MASTER_PORT of its own; where it has ended, start all again"
            )
        self._reach().write(self._at(key), said)

    def agree_on_token(self, nonce: str = "") -> str:
        """The run's token, which all make of the secret and of what the first process tells here.

        Args:
            nonce: of the run that goes on; empty if it begins anew.

        Raises:
            RunError: there is no run.
        """
        self.nonce = self.agree("nonce", (nonce or secrets.token_hex(16)).encode()).decode()
        return token_of(self._secret, self.nonce)

    def agree(self, key: str, content: bytes) -> bytes:
        """What the first process has said here, before it waits for others.

        Args:
            key: under which.
            content: what it says. If it comes again, it finds that of the run.

        Raises:
            RunError: there is no run.
        """
        if self.start.rank == 0:
            found: bytes | None = self._reach().compare_set(self._at(key), b"", content)
        else:
            found = self._wait(key, WaitingNotice(self.say))
        if not found:
            raise RunError(
                f"the first process, on {self.start.host}, has begun no run: see what it says, and start all "
                f"again{self._with_other_secret()}"
            )
        return found

    @contextmanager
    def telling_others(self) -> Iterator[None]:
        """If an error ends this process before there is a run, tell it to all others that wait for one."""
        try:
            with _named_shortage():
                yield
        except NotAdmitted:
            raise
        except UserError as error:
            if self.start.rank > 0:
                self._withdraw(str(error))
            elif self.has_store and not (self._has_admitted and isinstance(error, EndedAtOnce)):
                with suppress(ControlError, StoreLost):
                    # A first process that comes again, and takes no part, changes nothing for those that come later.
                    if self._has_admitted or self._reach().read(self._at("admission"), bytes) is None:
                        self.refuse(str(error))
            raise

    def _withdraw(self, reason: str) -> None:
        told = f"process {self.start.rank}, on {socket.gethostname()}, takes no part: {reason}"
        with suppress(ControlError, StoreLost):
            self._reach(min(TELLING, self._patience)).compare_set(self._at("withdrawn"), b"", told.encode())
            self.leave(1)

    def _write(self, key: str, content: object) -> None:
        self._reach().write(self._at(key), msgspec.json.encode(content))

    def _wait(self, key: str, awaiting: WaitingNotice, deadline: float | None = None) -> bytes | None:
        store = self._reach()
        deadline = time.monotonic() + self._patience if deadline is None else deadline
        # In short waits, between which a signal is heard.
        while store.wait(self._at(key), min(1.0, self._patience)) is None:
            self._heed()
            awaiting.look(self._whom)
            if time.monotonic() > deadline:
                return None
        return store.read(self._at(key), bytes)

    def _heed(self) -> None:
        """Look whether somebody has said that there is no run."""
        withdrawn, admission = self._read(["withdrawn", "admission"])
        if withdrawn is not None:
            refusal = withdrawn.decode(errors="replace")
        else:
            refusal = "" if admission is None else read_welcome(admission).refusal
        if not refusal:
            return
        if self.start.rank == 0:
            self.refuse(refusal)
        raise self._refused(refusal)

    def _refused(self, reason: str) -> NotAdmitted:
        """What ends this process, of which those who wait for it need to know that it has heard it."""
        if not self.is_late:
            self.leave(1)
        return NotAdmitted(reason)

    def _reach(self, patience: float | None = None) -> SealedValues:
        start, prefix = self.start, f"{self.start.prefix}/start"
        patience = self._patience if patience is None else patience
        if self._store is None:
            store: Store = (
                await_store(lambda: TorchStore(start.host, start.port, prefix=prefix), start, patience, self.say)
                if self.cluster is None
                else EtcdStore(self.cluster, prefix, near=self.address)
            )
            self._store = SealedValues(store, self._secret)
            store.set(f"come/{start.rank}", self._corner.encode())
        return self._store

    def _at(self, key: str) -> str:
        """Where a process with another secret, such as one that comes back, writes over nothing."""
        return f"{self._corner}/{key}"

    def _read(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._reach().get_many([self._at(key) for key in keys])


@contextmanager
def _named_shortage() -> Iterator[None]:
    """What the system has not got ends this process as an error that the others are told."""
    try:
        yield
    except NoneLeft as error:
        raise RunError(str(error)) from error
