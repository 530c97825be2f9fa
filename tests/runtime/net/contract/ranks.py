"""How the contract's tests run ranks of a transport: the little that differs between transports."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch.distributed import HashStore, PrefixStore, Store, TCPStore

from harness.stand_in import Library
from harness.stand_in_transport import ends_over
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.errors import Interrupted
from recycle.runtime.net.connect import connect, connect_pair
from recycle.runtime.net.network import Network, NetworkOptions, PrivateLink
from recycle.runtime.net.staged.network import StagedNetwork

HOST = "127.0.0.1"
FOR_EVER = timedelta(seconds=200)
SERVERS = (Server(0, 0), Server(1, 0), Server(0, 1), Server(1, 1))
"""Of the ranks: two peers, and two of another stage."""


class Broken(AssertionError):
    """A rule of the contract is broken."""


class Ends(NamedTuple):
    """What a transport offers, as ``recycle.runtime.net.connect`` does."""

    connect: Callable[..., Network]
    connect_pair: Callable[..., PrivateLink]


GLOO = Ends(connect, connect_pair)


def connect_staged(*arguments: Any, **keywords: Any) -> Network:
    """A network that takes every tensor for one on a device."""
    return StagedNetwork(connect(*arguments, **keywords), crosses=lambda _: True)


STAGED = Ends(connect_staged, connect_pair)


class Rank:
    """A rank in a test of the contract.

    Args:
        number: from 0.
        store: where ranks meet; the test's own keys lie beside.
        ends: of the transport.
        die: end this rank's life without a word.
        count_leftovers: how much the transport holds in this process.

    Attributes:
        number: as above.
        server: of this rank.
    """

    def __init__(
        self, number: int, store: Store, ends: Ends, die: Callable[[], None], count_leftovers: Callable[[], int]
    ) -> None:
        self.number = number
        self.server = SERVERS[number]
        self.die = die
        self.count_leftovers = count_leftovers
        self.alarm = threading.Event()
        self._ends = ends
        self._store = store
        self._test = PrefixStore("test", store)

    def check(self) -> None:
        """Raise if this rank has heard of an alarm."""
        if self.alarm.is_set():
            raise Interrupted("somebody raised the alarm")

    def connect(self, servers: tuple[Server, ...] = SERVERS[:3], epoch: int = 0, **more: Any) -> Network:
        """A network of some servers; no wait in it has an end, unless said otherwise."""
        options = NetworkOptions(more.pop("transfer", FOR_EVER), more.pop("rebuild", FOR_EVER), HOST)
        return self._ends.connect(
            self._store, View.among(servers, epoch), self.server, options, check=self.check, **more
        )

    def connect_pair(self, first: bool, name: str = "pair", check: Callable[[], None] = lambda: None) -> PrivateLink:
        """A private link between two ranks."""
        options = NetworkOptions(FOR_EVER, FOR_EVER, HOST)
        return self._ends.connect_pair(PrefixStore(name, self._store), first, options, check)

    def say(self, word: str) -> None:
        """Tell the other ranks something, past the transport."""
        self._test.set(f"{word}/{self.number}", "")

    def hear(self, word: str, *numbers: int) -> None:
        """Wait until other ranks have said it."""
        self._test.wait([f"{word}/{each}" for each in numbers], FOR_EVER)

    def lose(self, number: int, *others: int) -> None:
        """Have a rank die when the others are as far as this: one may be through a barrier before they are."""
        if self.number == number:
            self.hear("as far as this", *others)
            self.die()
        self.say("as far as this")
        self.hear("as far as this", *others)

    def has_said(self, word: str, number: int) -> bool:
        """Whether another rank has said it."""
        return self._test.check([f"{word}/{number}"])


Rule = Callable[[Rank], None]


class Transport(Protocol):
    """Runs ranks of a transport."""

    def run(self, rule: Rule, count: int, patience: float) -> None:
        """Run a rule in some ranks.

        Args:
            rule: run by each of them.
            count: how many there are.
            patience: for the slowest of them, in seconds; a rank that has not ended by then breaks the rule.

        Raises:
            Broken: a rank raised, or did not end.
        """


class Processes:
    """Each rank is a process, and dies of SIGKILL.

    Args:
        ends: of the transport.
    """

    def __init__(self, ends: Ends) -> None:
        self._ends = ends

    def run(self, rule: Rule, count: int, patience: float) -> None:
        """See Transport."""
        listener = socket.create_server((HOST, 0))
        port = listener.getsockname()[1]
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe(duplex=False) for _ in range(count)]
        # The store has threads, which a fork would lose.
        processes = [
            context.Process(target=self._live, args=(rule, number, port, pipes[number][1])) for number in range(count)
        ]
        for each in processes:
            each.start()
        store = TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        end = time.monotonic() + patience
        try:
            for number, each in enumerate(processes):
                each.join(max(end - time.monotonic(), 0))
                if each.exitcode is None:
                    raise Broken(f"rank {number} did not end within {patience} s")
            troubles = []
            for number, each in enumerate(processes):
                if pipes[number][0].poll():
                    troubles.append(f"rank {number}: {pipes[number][0].recv_bytes().decode()}")
                elif each.exitcode not in (0, -signal.SIGKILL):
                    troubles.append(f"rank {number} ended with {each.exitcode}")
            if troubles:
                raise Broken("; ".join(troubles))
        finally:
            for each in processes:
                each.kill()
                each.join()
            del store

    def _live(self, rule: Rule, number: int, port: int, pipe: Any) -> None:
        torch.set_num_threads(1)
        status = 0
        try:
            store = TCPStore(HOST, port, is_master=False, timeout=FOR_EVER)
            rule(Rank(number, store, self._ends, _kill_oneself, _count_sockets_and_threads))
        except BaseException as error:
            pipe.send_bytes(f"{type(error).__name__}: {error}".encode())
            status = 1
        os._exit(status)


def _kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _count_sockets_and_threads() -> int:
    return sum(len(list(Path(f"/proc/self/{each}").iterdir())) for each in ("fd", "task"))


class Gone(BaseException):
    """A thread that plays a rank ends here."""


def _end_thread() -> None:
    raise Gone


class Threads:
    """Each rank is a thread of this process, for a transport that needs nothing of a process.

    Args:
        world: makes what the ranks of one test share: the transport's ends, and how much of it a thread holds.
    """

    def __init__(self, world: Callable[[], tuple[Ends, Callable[[], int]]]) -> None:
        self._world = world

    def run(self, rule: Rule, count: int, patience: float) -> None:
        """See Transport."""
        (ends, count_leftovers), store = self._world(), HashStore()
        store.set_timeout(FOR_EVER)
        errors: list[str] = []

        def live(number: int) -> None:
            try:
                with suppress(Gone):
                    rule(Rank(number, store, ends, _end_thread, count_leftovers))
            except BaseException as error:
                errors.append(f"rank {number}: {type(error).__name__}: {error}")

        threads = [threading.Thread(target=live, args=(number,), daemon=True) for number in range(count)]
        for each in threads:
            each.start()
        end = time.monotonic() + patience
        for number, each in enumerate(threads):
            each.join(max(end - time.monotonic(), 0))
            if errors:
                raise Broken(errors[0])
            if each.is_alive():
                raise Broken(f"rank {number} did not end within {patience} s")


def stand_in(one_queue: bool) -> Threads:
    """Threads over the stand-in for NCCL, of whose devices each runs what it is given one after the other, or not."""

    def world() -> tuple[Ends, Callable[[], int]]:
        library = Library(one_queue)
        return Ends(*ends_over(library)), library.count

    return Threads(world)
