"""Several hosts on one machine: each has a network, processes, mounts and shared memory of its own.

A host is a set of Linux namespaces. Hosts hang on a switch, which is a namespace too, so nothing of them is to be
seen in the machine's own network. Their processes die with the process that made them; what else it left, the next one
removes.
"""

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from harness.processes import PROCESSES, children, is_running, send_signal
from recycle.control.host.children import die_with

TOOLS = ("ip", "tc", "unshare", "nsenter")
CONFIGURATION = Path("/etc/netns")
PREFIX = "recycle"
INIT = "mount -t tmpfs tmpfs /dev/shm && hostname {name} && echo ready && exec sleep infinity"


@cache
def missing() -> str:
    """Why there can be no hosts here; empty if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts are made of namespaces, which takes root on Linux"
    absent = [each for each in TOOLS if shutil.which(each) is None]
    if absent:
        return f"hosts take {', '.join(absent)}"
    name = f"{PREFIX}-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return f"no network namespace can be made: {made.stderr.strip()}" if made.returncode else ""


class Host:
    """One of them.

    Args:
        namespace: of its network.
        name: by which others know it.
        address: at which they reach it.
        plug: its end of the cable, in the switch.
        switch: the namespace of that.
        ahead: seconds for which its clock that only runs forward has run longer than this machine's.

    Attributes:
        first: the first process on it, as this machine knows it.
    """

    def __init__(self, namespace: str, name: str, address: str, plug: str, switch: str, ahead: int = 0) -> None:
        self.name = name
        self.address = address
        self._plug = plug
        self._switch = switch
        # What dies with its parent: unshare with this process, the first process of the host with unshare, and all
        # others of the host with that.
        self._outer = subprocess.Popen(
            [
                *("ip", "netns", "exec", namespace, "unshare", "--uts", "--ipc", "--pid", "--mount", "--mount-proc"),
                *("--time", f"--monotonic={ahead}", f"--boottime={ahead}"),
                *("--fork", "--kill-child", "sh", "-c", INIT.format(name=name)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where unshare complains that it is killed
            text=True,
            preexec_fn=partial(die_with, os.getpid()),
        )
        assert self._outer.stdout is not None
        with self._outer.stdout as said:
            assert said.readline() == "ready\n", f"host {name} does not start"
        self.first = children(self._outer.pid)[0]

    def command(self, *words: str) -> list[str]:
        """A command line that runs another one on this host."""
        spaces = ("--net", "--uts", "--ipc", "--pid", "--mount", "--time")
        return ["nsenter", "--target", str(self.first), *spaces, f"--wd={Path.cwd()}", "--", *words]

    def enter_network(self) -> None:
        """Have this process's sockets on this host from now on."""
        with (PROCESSES / str(self.first) / "ns" / "net").open() as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"the network of {self.name} cannot be entered")

    def cut_link(self, other: "Host") -> None:
        """Have whatever this host sends to another one vanish, and the other way round; both reach all others."""
        for one, there in ((self, other), (other, self)):
            nowhere = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
            subprocess.run(one.command("ip", "neighbour", "replace", there.address, *nowhere), check=True)

    def mend_link(self, other: "Host") -> None:
        """Heal that."""
        for one, there in ((self, other), (other, self)):
            subprocess.run(one.command("ip", "neighbour", "del", there.address, "dev", "eth0"), check=True)

    def refuse_to_send(self, other: "Host") -> None:
        """Have the kernel of this host refuse what is sent to another one, as a firewall of its own or a route does."""
        subprocess.run(self.command("ip", "route", "add", "blackhole", other.address), check=True)

    def lose_large_packets(self, most: int) -> None:
        """Have all packets to this host and from it vanish that have more bytes."""
        _ip("-n", self._switch, "link", "set", self._plug, "mtu", str(most))

    def pull_plug(self) -> None:
        """Cut the host from all others; its processes hear nothing of it."""
        _ip("-n", self._switch, "link", "set", self._plug, "down")

    def push_plug(self) -> None:
        """Heal that."""
        _ip("-n", self._switch, "link", "set", self._plug, "up")

    def pause(self) -> None:
        """Stop all its processes."""
        self._signal_all("STOP")

    def go_on(self) -> None:
        """Undo that."""
        self._signal_all("CONT")
        # What has started something here stops together with that, and goes on by no signal within the host.
        for process in children(os.getpid()):
            send_signal(process, signal.SIGCONT)

    def _signal_all(self, name: str) -> None:
        # To all but the first one, which has no part in what the host does.
        subprocess.run(self.command("sh", "-c", f"kill -s {name} -- -1"), check=True)

    def reboot(self) -> None:
        """Kill all its processes, and be there again."""
        self._signal_all("KILL")

    def crash(self) -> None:
        """Kill all its processes at one moment: the kernel does so when the first one dies."""
        if self._outer.poll() is None:
            send_signal(self.first, signal.SIGKILL)
        self._outer.wait()


@contextlib.contextmanager
def hosts(
    count: int, ahead: Mapping[int, int] | None = None, networks: Sequence[str] = ("10.77.0.{}/24",), own_name: str = ""
) -> Iterator[tuple[Host, ...]]:
    """Some hosts, which reach each other by name and by address.

    Args:
        count: how many.
        ahead: for how many seconds the clocks of some, by number from 0, have run longer than this machine's. Hosts
            share the other clock, that of the time of day: Linux has only one.
        networks: what addresses the hosts have, of IPv4 or IPv6, with a place for a host's number; the first one is
            the address that others are given.
        own_name: an address that each host alone takes its own name for, instead of those; empty for none.

    Yields:
        The hosts ``host1``, ``host2`` and so on.
    """
    _sweep()
    prefix = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(3)}-"
    switch, names = f"{prefix}switch", [f"host{number}" for number in range(1, count + 1)]
    places = [[each.format(number) for each in networks] for number in range(1, count + 1)]
    addresses = [[place.partition("/")[0] for place in own] for own in places]
    made: list[Host] = []
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for name, own in zip(names, places, strict=True):
            namespace, plug = f"{prefix}{name}", f"v-{name}"
            _ip("netns", "add", namespace)
            known = zip(names, addresses, strict=True)
            _configure(namespace, {each: [own_name] if own_name and each == name else found for each, found in known})
            _ip("-n", switch, "link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("-n", switch, "link", "set", plug, "master", "bridge", "up")
            for place in own:
                # An address of IPv6 would be looked for on the link first, for seconds.
                _ip("-n", namespace, "address", "add", place, "dev", "eth0", *(["nodad"] if ":" in place else []))
            for link in ("lo", "eth0"):
                _ip("-n", namespace, "link", "set", link, "up")
            # A network card has a queue, too. Without one, the kernel knows which packets the switch does not take, and
            # ends a connection over which it could send nothing fifteen times: after eight seconds.
            _run("tc", "-n", namespace, "qdisc", "add", "dev", "eth0", "root", "pfifo")
            # Or packets are cut to their size only where they are received.
            _ip("-n", namespace, "link", "set", "eth0", "gso_max_segs", "1")
            address = own[0].partition("/")[0]
            made.append(Host(namespace, name, address, plug, switch, (ahead or {}).get(len(made), 0)))
        yield tuple(made)
    finally:
        for host in made:
            host.crash()
        _remove(prefix)


def _configure(namespace: str, known: Mapping[str, Sequence[str]]) -> None:
    """What ``ip netns exec`` lays over /etc. Names are looked up in a file alone: nobody answers for others."""
    folder = CONFIGURATION / namespace
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{address} {name}\n" for name, addresses in known.items() for address in addresses]
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{''.join(lines)}")
    (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")


def _sweep() -> None:
    """Remove what processes have left that were killed."""
    for name in _namespaces():
        if not is_running(int(name.split("-")[1])):
            _remove(name)


def _remove(prefix: str) -> None:
    # Links between two namespaces go with the first of them.
    for name in _namespaces():
        if name.startswith(prefix):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(CONFIGURATION / name, ignore_errors=True)


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")]


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def leave_few_ports(host: Host) -> None:
    """Have the system of a host give away ports 40000 to 40003 alone."""
    command = host.command("sysctl", "-w", "net.ipv4.ip_local_port_range=40000 40003")
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def no_port_free() -> Iterator[None]:
    """Within the block, hold all ports that the system gives away."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            while True:
                held.enter_context(socket.create_server(("", 0)))
        yield
