"""The transport over NCCL on the stand-in that is a library: processes are killed at random moments, and replaced.

Everybody makes the network of a view, sums and transfers numbers that are known, whole and in shares, and hears of an
alarm in a thread that gives the network up, as in a run. An alarm, the next view and the replacement come at once, so
that kills also meet networks that are being made, first operations, and others that still give up.
"""

import faulthandler
import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import Store, TCPStore

from harness.processes import send_signal
from harness.stand_in_library import built, connect_over
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.errors import Interrupted, ViewBroken
from recycle.runtime.net.network import Network, NetworkOptions, Share
from recycle.runtime.net.transfer_key import STATE
from recycle.runtime.step.shared_sums import find_holders, spread, start_shared_sum

HOST = "127.0.0.1"
SERVERS = (Server(0, 0), Server(1, 0), Server(2, 0), Server(0, 1))
"""Three peers, so that each shard is with two of them and not with the third, and one of another stage."""
LONG = timedelta(hours=5)
SHARDS = 3
MOST = 150_000
"""Numbers of the largest tensor; it goes in several pieces."""

_FORK = multiprocessing.get_context("fork")


class Failed(AssertionError):
    """A sum was wrong, or somebody did not go on."""


class Outcome(NamedTuple):
    """What was seen.

    Attributes:
        kills: of processes.
        unmade: of them, in views that were never whole.
        compared: sums and transfers, by all ranks.
        seconds: from a kill until all have summed without the dead one; for kills after which it was waited for.
        held: descriptors and threads of the process that holds most at the end.
    """

    kills: int
    unmade: int
    compared: int
    seconds: tuple[float, ...]
    held: int


class LibraryKills:
    """Ranks that are killed.

    Args:
        seed: of the moments and of who dies.
        one_queue: whether all that a process starts runs one after the other.
        patience: seconds in which all must be at work in the newest view, else it hangs.
    """

    def __init__(self, seed: int, one_queue: bool, patience: float = 60.0) -> None:
        self._random = random.Random(seed)
        self._patience = patience
        self._connect = connect_over(built(), one_queue)
        listener = socket.create_server((HOST, 0))
        self._port = listener.getsockname()[1]
        # The store has threads, which a fork would lose, and ranks are forked here.
        self._server = _FORK.Process(target=_serve, args=(listener,))
        self._server.start()
        listener.close()
        self._store = _client(self._port)
        self._ranks = [self._fork(number, 0) for number in range(len(SERVERS))]

    def run(self, kills: int) -> Outcome:
        """Kill that often.

        Raises:
            Failed: something was wrong, or did not go on.
        """
        draw, unmade = self._random, 0
        seconds: list[float] = []
        try:
            self._await_whole(0)
            for epoch in range(kills):
                time.sleep(draw.uniform(0, 0.15))
                unmade += not self._is_whole(epoch)
                begun = time.monotonic()
                victim = draw.randrange(len(SERVERS))
                self._ranks[victim].kill()
                self._ranks[victim].join()
                self._store.set(f"alarm/{epoch}", "")
                self._ranks[victim] = self._fork(victim, epoch + 1)
                if draw.random() < 0.5 or epoch == kills - 1:
                    self._await_whole(epoch + 1)
                    seconds.append(time.monotonic() - begun)
            held = max(int(self._store.get(f"held/{kills}/{rank}")) for rank in range(len(SERVERS)))
            return Outcome(kills, unmade, self._store.add("compared", 0), tuple(seconds), held)
        finally:
            for each in [*self._ranks, self._server]:
                each.kill()
                each.join()

    def _fork(self, rank: int, epoch: int) -> Any:
        process = _FORK.Process(target=_live, args=(self._connect, self._port, rank, epoch))
        process.start()
        return process

    def _is_whole(self, epoch: int) -> bool:
        return self._store.check([f"held/{epoch}/{rank}" for rank in range(len(SERVERS))])

    def _await_whole(self, epoch: int) -> None:
        end = time.monotonic() + self._patience
        while not self._is_whole(epoch):
            if self._store.check(["wrong"]):
                raise Failed(self._store.get("wrong").decode())
            if time.monotonic() > end:
                for each in self._ranks:
                    send_signal(each.pid, signal.SIGUSR1)
                time.sleep(1)
                raise Failed(f"view {epoch} has not come to work within {self._patience:g} s")
            time.sleep(0.002)


class _Rank:
    """One process's life.

    Args:
        connect: makes networks.
        store: where ranks meet.
        alarms: the same, for the thread that hears of alarms.
        number: of the rank.
    """

    def __init__(self, connect: Callable[..., Network], store: Store, alarms: Store, number: int) -> None:
        self._connect, self._store, self._alarms, self._number = connect, store, alarms, number
        self._over = threading.Event()
        self._network: Network | None = None

    def live(self, epoch: int) -> None:
        """Work in a view, and in all that come after it."""
        while True:
            self._over.clear()
            watching = threading.Thread(target=self._watch, args=(epoch,))
            watching.start()
            try:
                self._work(epoch)
            except ViewBroken:
                assert self._over.wait(30), "the view broke without an alarm"
            watching.join()
            if self._network is not None:
                self._network.unblock()
                self._network = None
            epoch += 1

    def _watch(self, epoch: int) -> None:
        while not self._alarms.check([f"alarm/{epoch}"]):
            time.sleep(0.005)
        self._over.set()
        if self._network is not None:
            self._network.unblock()

    def _check(self) -> None:
        if self._over.is_set():
            raise Interrupted("the view is over")

    def _work(self, epoch: int) -> None:
        options = NetworkOptions(LONG, LONG, HOST)
        view = View.among(SERVERS, epoch)
        self._network = self._connect(self._store, view, SERVERS[self._number], options, check=self._check)
        self._network.connect_shares(find_holders(self._network, SHARDS))
        for step in range(10**9):
            self._check()
            wrong = [*self._sum(self._network, step), *self._share(self._network, step)]
            wrong += self._transfer(self._network, step)
            self._confirm(f"through/{epoch}/{step}")
            assert not any(wrong), f"of step {step} these are wrong: {wrong}"
            self._store.add("compared", len(wrong))
            if step == 0:
                held = sum(len(list(Path(f"/proc/self/{each}").iterdir())) for each in ("fd", "task"))
                self._store.set(f"held/{epoch}/{self._number}", str(held))

    def _confirm(self, name: str) -> None:
        """Wait until all have got as far as this one: what some gave up has ended with anything at others."""
        self._store.set(f"{name}/{self._number}", "")
        while not self._store.check([f"{name}/{each}" for each in range(len(SERVERS))]):
            self._check()
            time.sleep(0.001)

    def _sum(self, network: Network, step: int) -> list[str]:
        size = random.Random(step).randrange(1, MOST)
        count = len(SERVERS)
        total, most = (torch.full((size,), float(self._number + step)) for _ in range(2))
        network.all.sum(total)
        network.all.maximum(most)
        pairs = [(total, count * step + count * (count - 1) // 2), (most, step + count - 1)]
        return ["" if bool((found == expected).all()) else "a sum" for found, expected in pairs]

    def _share(self, network: Network, step: int) -> list[str]:
        size = random.Random(step).randrange(1, MOST) // SHARDS
        shares = [Share(slice(k * size, (k + 1) * size), each) for k, each in enumerate(find_holders(network, SHARDS))]
        peers = network.view.peers(network.server.stage)
        tensor = torch.full((SHARDS * size,), float(network.server.pipeline + step))
        expected = len(peers) * step + sum(each.pipeline for each in peers)
        start_shared_sum(network, tensor, shares).wait()
        here = [tensor[each.place] for each in shares if network.server in each.holders]
        wrong = ["" if bool((each == expected).all()) else "a share of a sum" for each in here]
        spread(network, [(tensor, shares)])
        return [*wrong, "" if bool((tensor == expected).all()) else "what was spread"]

    def _transfer(self, network: Network, step: int) -> list[str]:
        wrong = []
        size = random.Random(-step - 1).randrange(1, MOST)
        for peer in range(len(SERVERS)):
            # Pairs in one order for all; the lower one of each sends first.
            if peer == self._number:
                continue
            link = network.link(SERVERS[peer])
            sent = torch.full((size,), float(10 * self._number + step))
            for sends in (self._number < peer, self._number > peer):
                if sends:
                    link.send(sent, STATE).wait()
                    continue
                received = torch.zeros(size)
                link.receive(received, STATE).wait()
                wrong.append("" if bool((received == 10 * peer + step).all()) else f"what {peer} has sent")
        return wrong


def _live(connect: Callable[..., Network], port: int, number: int, epoch: int) -> None:
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    store = _client(port)
    try:
        _Rank(connect, store, _client(port), number).live(epoch)
    except BaseException as error:
        store.set("wrong", f"rank {number}: {type(error).__name__}: {error}")
        os._exit(1)


def _client(port: int) -> TCPStore:
    return TCPStore(HOST, port, is_master=False, timeout=LONG)


def _serve(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    store = TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    while store is not None:
        time.sleep(3600)
