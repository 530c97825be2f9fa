"""How long a view change takes, and what it asks of the store, with many members: the protocol alone, without training.

Usage: python -m benchmarks.membership [--members 256 1024] [--processes 2] [--victims first|last]
       [--store embedded|etcd]

Machine, board and gathering are the real ones, and so is the store that they meet in, which a process of its own
serves, or three members of etcd on this machine. One host of 8 servers dies, which another host tells. The time is
counted from right before that is told until the last survivor has the verdict and would build its groups.

A few processes stand for the members, each with a connection of its own, and go through them one by one: first all
halt, then all hear of the verdict. Who leads is in a process of its own. So nothing is counted that members would not
do in processes of their own, as threads that wait for each other would. With etcd, hosts have relays, as many processes
for all, and members are threads, because those of a host have to ask at the same time: two processes for each thousand
members keep them from waiting for each other for long. As in a run, all hosts watch for an alarm before there is one.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier, Event
from typing import Any, NamedTuple

import msgspec

from benchmarks.stores import STORES, Served, served
from harness.bare_members import TOKEN, BareMember, Cost
from harness.examples import paper_job
from harness.processes import seconds_of
from harness.relays import relays
from recycle.control.board.board import Board
from recycle.control.membership.doors import HostDoor
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import Death, Verdict
from recycle.control.membership.view import Member, View
from recycle.control.store.relay_requests import door_of
from recycle.control.store.relayed_store import RelayedStore
from recycle.control.store.store import Store
from recycle.job import Job

HOST = 8
DURATIONS = Durations(silence=60.0, answer=120.0)

HANDOVER = 5.0
"""Seconds for which a thread that stands for a process may compute: it hands over where it waits. With Python's 5 ms,
hundreds of them that are ready wake up all the time to ask for their turn."""


class Change(NamedTuple):
    """A view change.

    Attributes:
        seconds: until the last survivor had the verdict.
        processor: seconds of it that the survivors and their relays used, all together.
        relays: those that the relays used.
        server: the same of the store's process.
        costs: what it was for each of them.
        asked: requests that the store has answered; 0 where it does not say.
    """

    seconds: float
    processor: float
    relays: float
    server: float
    costs: list[Cost]
    asked: int


class Seat(NamedTuple):
    """Who a process is, and how it gets to the store.

    Attributes:
        members: for whom it stands.
        connect: to the store.
        relays: where the relay of each one's host listens; empty where there are none.
    """

    members: Sequence[Member]
    connect: Callable[[], Store]
    relays: Sequence[HostDoor]

    def connections(self) -> list[Store]:
        """One for each member."""
        if self.relays:
            return [RelayedStore(each, self.connect) for each in self.relays]
        with ThreadPoolExecutor(64) as pool:
            # At once: some names are looked up for seconds where no name server answers.
            return list(pool.map(lambda _: self.connect(), self.members))


def run_members(seat: Seat, job: Job, ready: Barrier, channel: Connection) -> None:
    """Be some members in one view change."""
    sys.setswitchinterval(HANDOVER)
    bare = [BareMember(*each, DURATIONS) for each in zip(seat.members, repeat(job), seat.connections(), strict=False)]
    for one in bare:
        one.begin()
    with ThreadPoolExecutor(len(bare) if seat.relays else 1) as pool:
        ready.wait()
        before = time.process_time()
        list(pool.map(BareMember.halt, bare))
        costs = list(pool.map(BareMember.change_view, bare))
    channel.send_bytes(msgspec.json.encode((time.process_time() - before, costs)))


def run_relays(doors: Sequence[HostDoor], connect: Callable[[], Store], ready: Barrier, end: Event) -> None:
    """Be the relays of some hosts."""
    sys.setswitchinterval(HANDOVER)
    with relays(dict.fromkeys(doors, connect)):
        ready.wait()
        end.wait()


def measure(count: int, processes: int, victims: str, store: Served) -> Change:
    """One view change.

    Args:
        count: how many members there are, the victims included.
        processes: how many they share.
        victims: whether the first host dies, with who leads, or the last one.
        store: where they meet.
    """
    job = paper_job(pipelines=count // HOST, stages=HOST, micro_batches=2)
    view = View.among(job.servers())
    verdict = Verdict(0, tuple(map(str, view.members)), 7)
    dead = view.members[:HOST] if victims == "first" else view.members[-HOST:]
    alive = [each for each in view.members if each not in set(dead)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.bare_members", "harness.relays"])
    board = Board(store.connect(), TOKEN)
    board.verdicts.propose(verdict)
    place = {each: view.members.index(each) // HOST for each in alive}
    doors = {host: door_of(f"{os.getpid()}/{host}", "") for host in set(place.values())} if store.has_relays else {}
    end, there = context.Event(), context.Barrier(processes + 1)
    relaying = [
        context.Process(
            target=run_relays, args=(list(doors.values())[number::processes], store.connect, there, end), daemon=True
        )
        for number in range(processes if doors else 0)
    ]
    for process in relaying:
        process.start()
    if relaying:
        there.wait()
    ready = context.Barrier(processes + 2)
    channels, started = [], []
    # Hosts stay together, where what is asked at the same time meets.
    shares = [[each for each in alive[1:] if place[each] % processes == number] for number in range(processes)]
    for some in (alive[:1], *shares):
        ours, theirs = context.Pipe(duplex=False)
        seat = Seat(some, store.connect, [doors[place[each]] for each in some] if doors else ())
        arguments: tuple[Any, ...] = (seat, job, ready, theirs)
        process = context.Process(target=run_members, args=arguments, daemon=True)
        process.start()
        channels.append(ours)
        started.append(process)
    ready.wait()
    while store.watches() < len(doors):
        time.sleep(0.1)
    server_before, relays_before, asked = store.processor(), _processor(relaying), store.requests()
    begin = time.monotonic()
    board.declare_dead([Death(str(member), "was lost with its host", "agent", begin) for member in dead], "a host")
    told = [msgspec.json.decode(channel.recv_bytes(), type=tuple[float, list[Cost]]) for channel in channels]
    costs = [each for _, found in told for each in found]
    server_used, relays_used = store.processor() - server_before, _processor(relaying) - relays_before
    asked = store.requests() - asked
    end.set()
    for process in started + relaying:
        process.join()
    seconds = max(each.decided for each in costs) - begin
    return Change(seconds, sum(spent for spent, _ in told) + relays_used, relays_used, server_used, costs, asked)


def _processor(processes: Iterable[BaseProcess]) -> float:
    return sum(seconds_of(each.pid) for each in processes if each.pid is not None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--victims", choices=["first", "last"], default="last")
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    arguments = parser.parse_args()
    print(f"the {arguments.victims} host of {HOST} dies; {arguments.processes} processes; per survivor: median (most)")
    print("members | all decided | processor: members, store | requests      | bytes read, view aside")
    for count in arguments.members:
        with served(arguments.store) as store:
            change = measure(count, arguments.processes, arguments.victims, store)
        seconds, processor, relaying, server, costs, total = change
        requests, read = sorted(each.requests for each in costs), sorted(each.read - each.view for each in costs)
        asked = f"{statistics.median(requests):.0f} ({requests[-1]})"
        got = f"{statistics.median(read):.0f} ({read[-1]}); the view {max(each.view for each in costs)}"
        print(f"{count:7} | {seconds * 1000:8.0f} ms | {processor:7.2f} s, {server:7.2f} s     | {asked:13} | {got}")
        if total:
            hosts = count // HOST - 1
            told = f"{total} requests to the store, {total / hosts:.1f} a host"
            print(f"        | through {hosts} relays: {told}; {relaying:.2f} s of the processor for the relays")
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
