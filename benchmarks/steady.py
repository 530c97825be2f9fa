"""What signs of life ask of the store while nothing fails: requests per host and second, and the store's processor.

Usage: python -m benchmarks.steady [--members 256 1024 4096] [--beats 48] [--processes 2] [--store embedded|etcd]

The hosts have 8 servers each. What one agent of each does in a beat is done with the real leader over a connection of
its own. So is what the 8 workers ask every sixteen seconds, in every eighth wait for a call: is there an alarm?
With etcd, hosts hail each other, and workers ask what their relay makes of that, the first one's question and that of
all others, and every twelve seconds a reading of the bells. The waits themselves are counted in the run's own store,
and not made. A few processes stand for the hosts, which look one after the other, each at its time in a beat; where the
machine cannot keep up, their clocks are slow, and what they ask is laid over the time that it should have taken.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

import msgspec

from benchmarks.membership import HANDOVER, HOST
from benchmarks.stores import STORES, Served, served
from harness.bare_members import TOKEN, CountingStore
from harness.examples import paper_job
from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.host.direct_heartbeats import DirectHeartbeats, DirectHeartbeatSocket
from recycle.control.host.heartbeat_leader import HeartbeatLeader
from recycle.control.host.signs import HostSocket, Sign
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import Verdict
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, View
from recycle.control.store.etcd_bells import LONGEST_HEARING
from recycle.control.store.store import Store
from recycle.runtime.recover.alarm_watch import CALM, RARELY

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
        if seat.has_relays and (beat + number) * DURATIONS.beat % LONGEST_HEARING == 0:
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


def measure(count: int, beats: int, processes: int, served: Served) -> Steady:
    """What the hosts of so many members ask of a store."""
    members = View.among(paper_job(pipelines=count // HOST, stages=HOST, micro_batches=2).servers()).members
    Board(served.connect(), TOKEN).verdicts.propose(Verdict(0, tuple(map(str, members)), 7))
    hosts = [members[place : place + HOST] for place in range(0, count, HOST)]
    context = multiprocessing.get_context("forkserver")
    ready = context.Barrier(processes + 1)
    channels, started = [], []
    for number in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        seat = HostsSeat(hosts, range(number, len(hosts), processes), served.connect, served.has_relays, beats)
        process = context.Process(target=run_hosts, args=(seat, ready, theirs), daemon=True)
        process.start()
        channels.append(ours)
        started.append(process)
    ready.wait()
    ready.wait()
    before = served.processor()
    ready.wait()
    used = served.processor() - before
    told = [msgspec.json.decode(channel.recv_bytes(), type=tuple[int, float]) for channel in channels]
    for process in started:
        process.join()
    seconds = beats * DURATIONS.beat
    waits = 0 if served.has_relays else HOST / (CALM * DURATIONS.beat)
    requests = sum(asked for asked, _ in told) / len(hosts) / seconds + waits
    return Steady(requests, used / seconds, max(late for _, late in told))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--beats", type=int, default=48, help="of half a second; a multiple of 16")
    parser.add_argument("--processes", type=int, default=2, help="that stand for all hosts")
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    arguments = parser.parse_args()
    print(f"members | requests per host and second | cores of the store ({DURATIONS.beat:g} s between two beats)")
    for count in arguments.members:
        with served(arguments.store) as store:
            found = measure(count, arguments.beats, arguments.processes, store)
        behind = f"; hosts were {found.late:.1f} s late at the end" if found.late > DURATIONS.beat else ""
        print(f"{count:7} | {found.requests:28.2f} | {found.cores:.2f}{behind}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
