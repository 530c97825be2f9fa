"""What a run with many members asks of its store: in a view change, and while nothing fails.

Usage: python -m benchmarks.store membership [--members 256 1024] [--processes 2] [--victims first|last]
           [--store embedded|etcd]
       python -m benchmarks.store steady [--members 256 1024 4096] [--beats 48] [--processes 2] [--store embedded|etcd]

``membership``: the protocol alone, without training. Machine, board and gathering are the real ones, and so is the
store, which a process of its own serves, or three members of etcd on this machine. One host of 8 servers dies, which
another host tells. The time is counted from right before that is told until the last survivor has the verdict. A few
processes stand for the members, each with a connection of its own, and go through them one by one, so nothing is
counted that members would not do in processes of their own. With etcd, hosts have relays, as many processes for all,
and members are threads, because those of a host have to ask at the same time.

``steady``: what one agent of each host does in a beat, with the real leader over a connection of its own, and what
its 8 workers ask every sixteen seconds, in every eighth wait for a call: is there an alarm? With etcd, hosts hail
each other, and workers ask what their relay makes of that, and every twelve seconds a reading of the bells. The waits
themselves are counted in the run's own store, and not made. Where the machine cannot keep up, the hosts' clocks are
slow, and what they ask is laid over the time that it should have taken.
"""

import argparse
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier, Event
from typing import NamedTuple
from urllib.request import urlopen

import msgspec

from benchmarks.shared import run_part
from harness.bare_members import TOKEN, BareMember, Cost, CountingStore
from harness.etcd import etcd
from harness.examples import paper_job
from harness.processes import seconds_of
from harness.relays import relays
from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.host.direct_heartbeats import DirectHeartbeats, DirectHeartbeatSocket
from recycle.control.host.heartbeat_leader import HeartbeatLeader
from recycle.control.host.signs import HostSocket, Sign
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.doors import HostDoor
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import Death, Verdict
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, View
from recycle.control.store.etcd_store import LOOK_FOR_BELLS, EtcdStore
from recycle.control.store.relay import door_of
from recycle.control.store.relayed_store import RelayedStore
from recycle.control.store.store import Store
from recycle.control.store.tcp_store import TorchStore, listen, serve
from recycle.job import Job
from recycle.runtime.recover.alarm_watch import CALM, RARELY

STORES = ("embedded", "etcd")
MEMBERS = 3
PATIENCE = 120.0


class Served(NamedTuple):
    """A store that is served.

    Attributes:
        connect: makes a connection, in any process.
        processes: that serve it.
        metrics: where each of them says what it has done; none for the run's own.
    """

    connect: Callable[[], Store]
    processes: Sequence[int]
    metrics: Sequence[str] = ()

    @property
    def has_relays(self) -> bool:
        """Whether the members of a host ask it through a relay."""
        return bool(self.metrics)

    def requests(self) -> int:
        """How many requests it has answered, watches included; 0 where it does not say."""
        return sum(_started(each, ("etcdserverpb.KV", "etcdserverpb.Watch")) for each in self.metrics)

    def watches(self) -> int:
        """How many of these are watches."""
        return sum(_started(each, ("etcdserverpb.Watch",)) for each in self.metrics)

    def processor(self) -> float:
        """Seconds of the processor that they have used."""
        return sum(seconds_of(each) for each in self.processes)


@contextmanager
def served(kind: str) -> Iterator[Served]:
    """Serve a store of a kind: the run's own, or an etcd cluster of three members."""
    if kind == "etcd":
        with etcd(MEMBERS) as cluster:
            connect = partial(EtcdStore, cluster.cluster, "benchmark", PATIENCE)
            metrics = [f"http://{host}:{port}/metrics" for host, port in (each.address for each in cluster.members)]
            yield Served(connect, [each.process.pid for each in cluster.members], metrics)
        return
    listener = listen()
    host, port = listener.getsockname()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(listener,), daemon=True)
    server.start()
    assert server.pid is not None
    yield Served(partial(TorchStore, host, port, PATIENCE), [server.pid])
    server.kill()
    server.join()


def _serve(listener: socket.socket) -> None:
    served = serve(listener)
    signal.pause()
    del served


def _started(address: str, services: Sequence[str]) -> int:
    with urlopen(address) as answer:
        lines = answer.read().decode().splitlines()
    counted = [
        each
        for each in lines
        if each.startswith("grpc_server_started_total{") and any(f'service="{name}"' in each for name in services)
    ]
    return sum(int(float(each.rpartition(" ")[2])) for each in counted)


HOST = 8
PATIENT = Durations(silence=60.0, answer=120.0)

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
    bare = [BareMember(*each, PATIENT) for each in zip(seat.members, repeat(job), seat.connections(), strict=False)]
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


def change_view(count: int, processes: int, victims: str, store: Served) -> Change:
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
    begun = []
    # Hosts stay together, where what is asked at the same time meets.
    shares = [[each for each in alive[1:] if place[each] % processes == number] for number in range(processes)]
    for some in (alive[:1], *shares):
        seat = Seat(some, store.connect, [doors[place[each]] for each in some] if doors else ())
        begun.append(begin_part(context, run_members, seat, job, ready))
    ready.wait()
    while store.watches() < len(doors):
        time.sleep(0.1)
    server_before, relays_before, asked = store.processor(), _processor(relaying), store.requests()
    begin = time.monotonic()
    board.declare_dead([Death(str(member), "was lost with its host", "agent", begin) for member in dead], "a host")
    told = [msgspec.json.decode(channel.recv_bytes(), type=tuple[float, list[Cost]]) for channel, _ in begun]
    costs = [each for _, found in told for each in found]
    server_used, relays_used = store.processor() - server_before, _processor(relaying) - relays_before
    asked = store.requests() - asked
    end.set()
    for ended in (*(each for _, each in begun), *relaying):
        ended.join()
    seconds = max(each.decided for each in costs) - begin
    return Change(seconds, sum(spent for spent, _ in told) + relays_used, relays_used, server_used, costs, asked)


def begin_part(
    context: ForkServerContext, part: Callable[..., None], *arguments: object
) -> tuple[Connection, BaseProcess]:
    """Begin a process that stands for some members or hosts; gives where it tells what it has found."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=part, args=(*arguments, theirs), daemon=True)
    process.start()
    return ours, process


def _processor(processes: Iterable[BaseProcess]) -> float:
    return sum(seconds_of(each.pid) for each in processes if each.pid is not None)


def membership() -> int:
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
            change = change_view(count, arguments.processes, arguments.victims, store)
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


DURATIONS = Durations()
RELAYED = 2
"""Requests that a relay makes of what all ask at once."""

THREADS = 8
"""For all hosts of a process; none looks twice at the same time."""

BEGINNING = 8
"""Beats in which all get to know each other."""


class Clock:
    """That of all hosts.

    Attributes:
        time: in seconds, from when all begin.
    """

    def __init__(self) -> None:
        self.time = 0.0

    def read(self) -> float:
        """The time in seconds."""
        return self.time


class HostsSeat(NamedTuple):
    """The hosts for which a process stands.

    Attributes:
        hosts: the members of each host of the run.
        numbers: of the hosts that are this process's.
        connect: to the store.
        has_relays: whether hosts hail each other, and relays ask for them.
        beats: in which is counted.
    """

    hosts: Sequence[Sequence[Member]]
    numbers: Sequence[int]
    connect: Callable[[], Store]
    has_relays: bool
    beats: int


def run_hosts(seat: HostsSeat, ready: Barrier, channel: Connection) -> None:
    """Be some hosts in a few beats; tells how many requests they have made, and how late the last look was."""
    sys.setswitchinterval(HANDOVER)
    with ThreadPoolExecutor(64) as pool:
        # At once: some names are looked up for seconds where no name server answers.
        stores = [CountingStore(each) for each in pool.map(lambda _: seat.connect(), seat.numbers)]
    boards = [Board(store, TOKEN) for store in stores]
    for number, board in zip(seat.numbers, boards, strict=True):
        for member in seat.hosts[number]:
            board.beats.settle(Participant(member), f"host {number}")
    clock = Clock()
    leaders = []
    for number in seat.numbers:
        heard = DirectHeartbeats(f"host {number}", TOKEN, DURATIONS.silence)
        direct = DirectHeartbeatSocket(heard, LOOPBACK, DURATIONS.beat, clock.read) if seat.has_relays else None
        leaders.append(HeartbeatLeader(HostSocket(TOKEN), f"host {number}", DURATIONS, 1, direct))
    speaking = list(zip(seat.numbers, boards, leaders, stores, strict=True))

    def look(beat: int, own: tuple[int, Board, HeartbeatLeader, CountingStore]) -> None:
        number, board, leader, store = own
        # Hosts are not in step with each other.
        now = (beat + number / len(seat.hosts)) * DURATIONS.beat
        time.sleep(max(0.0, begin + now - time.monotonic()))
        clock.time = max(clock.time, now)
        for member in seat.hosts[number]:
            leader.note(Sign(str(member), 1, "agent", beat))
            leader.note(Sign(str(member), 1, "worker", beat))
        if (beat + number) % (CALM * RARELY) == 0:
            for _ in range(RELAYED if seat.has_relays else HOST):
                board.failures.alarm(0)
        if seat.has_relays and (beat + number) * DURATIONS.beat % LOOK_FOR_BELLS == 0:
            # As bells are.
            store.peek([keys.call(0)])
        leader.look(board, now)

    ready.wait()
    begin = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        for beat in range(seat.beats + BEGINNING):
            if beat == BEGINNING:
                ready.wait()
                for store in stores:
                    store.clear()
                # Getting to know each other may have taken longer.
                begin = time.monotonic() - beat * DURATIONS.beat
            list(pool.map(partial(look, beat), speaking))
    late = time.monotonic() - begin - (seat.beats + BEGINNING) * DURATIONS.beat
    ready.wait()
    assert boards[0].failures.alarm(0) is None, "somebody was missed"
    channel.send_bytes(msgspec.json.encode((sum(store.requests for store in stores), late)))
    for leader in leaders:
        leader.leave()


class Steady(NamedTuple):
    """What a store is asked for while nothing fails.

    Attributes:
        requests: per host and second.
        cores: that the store uses.
        late: seconds by which the machine was behind at the end.
    """

    requests: float
    cores: float
    late: float


def count_requests(count: int, beats: int, processes: int, served: Served) -> Steady:
    """What the hosts of so many members ask of a store."""
    members = View.among(paper_job(pipelines=count // HOST, stages=HOST, micro_batches=2).servers()).members
    Board(served.connect(), TOKEN).verdicts.propose(Verdict(0, tuple(map(str, members)), 7))
    hosts = [members[place : place + HOST] for place in range(0, count, HOST)]
    context = multiprocessing.get_context("forkserver")
    ready = context.Barrier(processes + 1)
    begun = []
    for number in range(processes):
        seat = HostsSeat(hosts, range(number, len(hosts), processes), served.connect, served.has_relays, beats)
        begun.append(begin_part(context, run_hosts, seat, ready))
    ready.wait()
    ready.wait()
    before = served.processor()
    ready.wait()
    used = served.processor() - before
    told = [msgspec.json.decode(channel.recv_bytes(), type=tuple[int, float]) for channel, _ in begun]
    for _, process in begun:
        process.join()
    seconds = beats * DURATIONS.beat
    waits = 0 if served.has_relays else HOST / (CALM * DURATIONS.beat)
    requests = sum(asked for asked, _ in told) / len(hosts) / seconds + waits
    return Steady(requests, used / seconds, max(late for _, late in told))


def steady() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--beats", type=int, default=48, help="of half a second; a multiple of 16")
    parser.add_argument("--processes", type=int, default=2, help="that stand for all hosts")
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    arguments = parser.parse_args()
    print(f"members | requests per host and second | cores of the store ({DURATIONS.beat:g} s between two beats)")
    for count in arguments.members:
        with served(arguments.store) as store:
            found = count_requests(count, arguments.beats, arguments.processes, store)
        behind = f"; hosts were {found.late:.1f} s late at the end" if found.late > DURATIONS.beat else ""
        print(f"{count:7} | {found.requests:28.2f} | {found.cores:.2f}{behind}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(run_part(__doc__, {"membership": membership, "steady": steady}))
