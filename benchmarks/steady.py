"""What signs of life ask of the store while nothing fails: requests per host and second, and the store's processor.

Usage: python -m benchmarks.steady [--members 256 1024 4096] [--beats 48] [--store embedded|etcd]

The hosts have 8 servers each. What one agent of each does in a beat is done with the real speaker over a connection of
its own. So is what the 8 workers ask every sixteen seconds, in every eighth wait for a call: is there an alarm?
With etcd, hosts hail each other, and workers ask what their relay makes of that, the first one's question and that of
all others, and every four seconds a reading of the bells. The waits themselves are counted in the run's own store, and
not made. Hosts look one after the other, each at its time in a beat; where the machine cannot keep up, their clocks
are slow, and what they ask is laid over the time that it should have taken.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.membership import HOST
from benchmarks.stores import STORES, Served, served
from harness.bare_members import TOKEN, CountingStore
from harness.examples import paper_job
from recycle.control import keys
from recycle.control.board import Board
from recycle.control.durations import Durations
from recycle.control.etcd_bells import LONGEST_HEARING
from recycle.control.hails import Hails, HailSocket
from recycle.control.messages import Verdict
from recycle.control.participant import Participant
from recycle.control.signs import HostSocket, Sign
from recycle.control.speaker import Speaker
from recycle.control.tcp_store import LOOPBACK
from recycle.control.view import View
from recycle.runtime.recover.alarm_watch import CALM, RARELY

DURATIONS = Durations()
RELAYED = 2
"""Requests that a relay makes of what all ask at once."""

THREADS = 8
"""For all hosts; none looks twice at the same time."""

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


def measure(count: int, beats: int, served: Served) -> tuple[float, float]:
    """Requests per host and second, and how many cores the store uses."""
    members = View.among(paper_job(pipelines=count // HOST, stages=HOST, micro_batches=2).servers()).members
    Board(served.connect(), TOKEN).verdicts.propose(Verdict(0, tuple(map(str, members)), 7))
    hosts = [members[place : place + HOST] for place in range(0, count, HOST)]
    with ThreadPoolExecutor(64) as pool:
        # At once: some names are looked up for seconds where no name server answers.
        stores = [CountingStore(each) for each in pool.map(lambda _: served.connect(), hosts)]
    boards = [Board(store, TOKEN) for store in stores]
    for number, (board, own) in enumerate(zip(boards, hosts, strict=True)):
        for member in own:
            board.beats.settle(Participant(member), f"host {number}")
    clock = Clock()
    names = [f"host {number}" for number in range(len(hosts))]
    heard = [Hails(name, TOKEN, DURATIONS.silence) for name in names]
    hailers = [HailSocket(each, LOOPBACK, DURATIONS.beat, clock.read) if served.has_relays else None for each in heard]
    speakers = [
        Speaker(HostSocket(TOKEN), name, DURATIONS, 1, hailer) for name, hailer in zip(names, hailers, strict=True)
    ]
    speaking = list(zip(boards, speakers, hosts, strict=True))

    def look(beat: int, number: int) -> None:
        board, speaker, own = speaking[number]
        # Hosts are not in step with each other.
        now = (beat + number / len(hosts)) * DURATIONS.beat
        time.sleep(max(0.0, begin + now - time.monotonic()))
        clock.time = max(clock.time, now)
        for member in own:
            speaker.note(Sign(str(member), 1, "agent", beat))
            speaker.note(Sign(str(member), 1, "worker", beat))
        if (beat + number) % (CALM * RARELY) == 0:
            for _ in range(RELAYED if served.has_relays else HOST):
                board.failures.alarm(0)
        if served.has_relays and (beat + number) * DURATIONS.beat % LONGEST_HEARING == 0:
            # As bells are.
            stores[number].peek([keys.call(0)])
        speaker.look(board, now)

    before, begin = 0.0, time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        for beat in range(beats + BEGINNING):
            if beat == BEGINNING:
                before = served.processor()
                for store in stores:
                    store.clear()
            list(pool.map(partial(look, beat), range(len(hosts))))
    used = served.processor() - before
    assert boards[0].failures.alarm(0) is None, "somebody was missed"
    for speaker in speakers:
        speaker.leave()
    seconds = beats * DURATIONS.beat
    waits = 0 if served.has_relays else HOST / (CALM * DURATIONS.beat)
    return sum(store.requests for store in stores) / len(stores) / seconds + waits, used / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--beats", type=int, default=48, help="of half a second; a multiple of 16")
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    arguments = parser.parse_args()
    print(f"members | requests per host and second | cores of the store ({DURATIONS.beat:g} s between two beats)")
    for count in arguments.members:
        with served(arguments.store) as store:
            requests, cores = measure(count, arguments.beats, store)
        print(f"{count:7} | {requests:28.1f} | {cores:.2f}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
