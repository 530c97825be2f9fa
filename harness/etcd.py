"""An etcd cluster for tests and benchmarks: members on this machine or on hosts.

They can be killed and paused, run full, and come back without their data or as another cluster.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from harness.hosts import Host
from harness.ports import free_port
from harness.processes import family, send_signal
from recycle.control.host.children import die_with
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.control.store.etcd_gateway import Gateway
from recycle.control.store.etcd_store import EtcdStore


def missing() -> str:
    """Why there can be no etcd here; empty if there can."""
    if shutil.which("etcd") is None:
        return "this takes etcd (Debian: etcd-server)"
    return "" if sys.platform == "linux" else "members die with their parent on Linux only"


class EtcdMember:
    """One of them.

    Args:
        name: of the member.
        words: its command line.
        address: where clients reach it.
        folder: of its data, beside which there is a file for what it says.
    """

    def __init__(self, name: str, words: Sequence[str], address: tuple[str, int], folder: Path) -> None:
        self.name = name
        self.address = address
        self._words = words
        self._folder = folder
        self.start()

    def start(self, *more: str) -> None:
        """Start it, with what it knew before.

        Args:
            more: options for this time only.
        """
        with self._folder.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._words, *more],
                stdout=log,
                stderr=log,
                preexec_fn=partial(die_with, os.getpid()),
                start_new_session=True,
            )

    def start_anew(self, *more: str) -> None:
        """Kill it, and start it without its data; see ``start``."""
        self.kill()
        shutil.rmtree(self._folder)
        self.start(*more)

    def kill(self) -> None:
        """Kill it; once this returns, its ports are free."""
        # On a host, what was started only waits for it.
        for each in family(self.process.pid) - {self.process.pid} or {self.process.pid}:
            send_signal(each, signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        """Have it answer nothing, with all its connections open."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo that."""
        self.process.send_signal(signal.SIGCONT)


class Etcd:
    """A cluster that answers.

    Args:
        members: all of them.
        scheme: with which clients reach it.
    """

    def __init__(self, members: Sequence[EtcdMember], scheme: str = "etcd") -> None:
        self.members = tuple(members)
        self._scheme = scheme

    @property
    def url(self) -> str:
        """What a user gives."""
        return (
            f"{self._scheme}://{','.join(f'{host}:{port}' for host, port in (each.address for each in self.members))}"
        )

    @property
    def cluster(self) -> EtcdCluster:
        """The same as it is read."""
        return EtcdCluster.parse(self.url)

    def leader(self) -> EtcdMember:
        """Who leads now, as the members say."""
        for member in self.members:
            status = Gateway(msgspec.structs.replace(self.cluster, members=(member.address,))).call(
                "maintenance/status", {}
            )
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise AssertionError("nobody leads")

    def fill(self) -> None:
        """Write until a member is full, and all refuse what is written."""
        gateway = Gateway(self.cluster)
        with contextlib.suppress(StoreLost):
            for _ in range(1000):
                value = b64encode(os.urandom(700_000)).decode()
                gateway.call("kv/put", {"key": b64encode(b"/junk").decode(), "value": value})
            raise AssertionError("no member gets full: give a quota")

    def make_room(self) -> None:
        """Do what an administrator does about that."""
        revision = Gateway(self.cluster).call("kv/range", {"key": b64encode(b"/junk").decode()})["header"]["revision"]
        Gateway(self.cluster).call("kv/compaction", {"revision": revision, "physical": True})
        for member in self.members:
            gateway = Gateway(msgspec.structs.replace(self.cluster, members=(member.address,)))
            gateway.call("maintenance/defragment", {})
        for each in gateway.call("maintenance/alarm", {"action": "GET"})["alarms"]:
            gateway.call("maintenance/alarm", {"action": "DEACTIVATE", **each})

    def demand_password(self, user: str, password: str) -> None:
        """From now on, nobody else but root is let in."""
        gateway = Gateway(self.cluster)
        for name in ("root", user):
            _once(gateway, "auth/user/add", {"name": name, "password": password})
            _once(gateway, "auth/role/add", {"name": name})
            gateway.call("auth/user/grant", {"user": name, "role": name})
        keys = {"key": b64encode(b"/recycle/").decode(), "range_end": b64encode(b"/recycle0").decode()}
        gateway.call("auth/role/grant", {"name": user, "perm": {"permType": "READWRITE", **keys}})
        gateway.call("auth/enable", {})


def _once(gateway: Gateway, method: str, request: dict[str, str]) -> None:
    """Make a request of which etcd refuses the second one: one that took long to be answered was made again."""
    try:
        gateway.call(method, request)
    except ControlError as error:
        if "already exists" not in str(error):
            raise


@contextlib.contextmanager
def etcd(
    count: int = 1, hosts: Sequence[Host] = (), tls: Sequence[str] = (), quotas: Sequence[int] = ()
) -> Iterator[Etcd]:
    """A cluster.

    Args:
        count: how many members.
        hosts: where they are, one each; on this machine if there are none.
        tls: options for connections of clients that are encrypted.
        quotas: how many bytes the first members may hold.

    Yields:
        The cluster, once a majority answers; where clients need certificates, as soon as it is started.
    """
    scheme = "https" if tls else "http"
    addresses = [host.address for host in hosts] or ["127.0.0.1"] * count
    with tempfile.TemporaryDirectory(prefix="recycle-etcd-") as folder, contextlib.ExitStack() as members:
        ports = [(2379, 2380)] * count if hosts else [(free_port(), free_port()) for _ in range(count)]
        peers = [f"http://{address}:{port}" for address, (_, port) in zip(addresses, ports, strict=True)]
        initial = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        started = []
        for number, (address, (port, _), peer) in enumerate(zip(addresses, ports, peers, strict=True)):
            clients = f"{scheme}://{address}:{port}"
            words = [
                *("etcd", "--name", f"m{number}", "--data-dir", f"{folder}/m{number}"),
                *("--listen-client-urls", clients, "--advertise-client-urls", clients),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", initial, "--initial-cluster-state", "new"),
                *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10m"),
                *("--pre-vote", "--logger", "zap", "--log-level", "error", *tls),
            ]
            words += ["--quota-backend-bytes", str(quotas[number])] if number < len(quotas) else []
            words = hosts[number].command(*words) if hosts else words
            member = EtcdMember(f"m{number}", words, (address, port), Path(folder) / f"m{number}")
            members.callback(member.kill)
            started.append(member)
        found = Etcd(started, "etcds" if tls else "etcd")
        if not tls and not hosts:
            await_answer(found.cluster)
        yield found


def await_answer(cluster: EtcdCluster) -> None:
    """Wait until a majority answers."""
    deadline = time.monotonic() + 60
    while True:
        try:
            EtcdStore(cluster, patience=5.0)
            return
        except StoreLost:
            assert time.monotonic() < deadline, "etcd does not start"
            time.sleep(0.1)
