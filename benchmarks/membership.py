"""How long a view change takes, and what it asks of the store, with many members: the protocol alone, without training.

Usage: python -m benchmarks.membership [--members 256 1024] [--processes 8] [--victims first|last]
       [--store embedded|etcd]

Machine, board and gathering are the real ones, and so is the store that they meet in, which a process of its own
serves, or three members of etcd on this machine. The members are threads of a few processes, and so are the hosts that
they are said to be on: one host of 8 servers dies, which one agent says of each. The time is counted from right before
the first of these deaths is told until the last survivor has the verdict and would build its groups.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

import msgspec

from benchmarks.stores import STORES, Served, served
from harness.bare_members import TOKEN, BareMember, Cost
from harness.examples import paper_job
from recycle.control.board import Board
from recycle.control.durations import Durations
from recycle.control.messages import Death, Verdict
from recycle.control.store import Store
from recycle.control.view import Member, View
from recycle.job import Job

HOST = 8
DURATIONS = Durations(silence=60.0, answer=120.0)


class Change(NamedTuple):
    """A view change.

    Attributes:
        seconds: until the last survivor had the verdict.
        processor: seconds of it that the survivors used, all together.
        costs: what it was for each of them.
    """

    seconds: float
    processor: float
    costs: list[Cost]


def run_members(
    members: Sequence[Member],
    job: Job,
    connect: Callable[[], Store],
    verdict: Verdict,
    ready: Barrier,
    channel: Connection,
) -> None:
    """Be some members, a thread each, in one view change."""
    costs: list[Cost] = []
    begun = threading.Barrier(len(members) + 1)

    def work(member: Member) -> None:
        # Each by itself: some names are looked up for seconds where no name server answers.
        one = BareMember(member, job, connect(), DURATIONS)
        one.begin(verdict)
        begun.wait()
        costs.append(one.change_view())

    threads = [threading.Thread(target=work, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    begun.wait()
    ready.wait()
    before = time.process_time()
    for thread in threads:
        thread.join()
    channel.send_bytes(msgspec.json.encode((time.process_time() - before, costs)))


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
    context = multiprocessing.get_context("spawn")
    board = Board(store.connect(), TOKEN)
    board.verdicts.propose(verdict)
    ready = context.Barrier(processes + 1)
    channels, started = [], []
    for number in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        arguments: tuple[Any, ...] = (alive[number::processes], job, store.connect, verdict, ready, theirs)
        process = context.Process(target=run_members, args=arguments, daemon=True)
        process.start()
        channels.append(ours)
        started.append(process)
    ready.wait()
    # All threads have had time to come to their wait.
    time.sleep(2.0)
    begin = time.monotonic()
    for member in dead:
        board.declare_dead(Death(str(member), "was lost with its host", "agent", begin), "agent")
    told = [msgspec.json.decode(channel.recv_bytes(), type=tuple[float, list[Cost]]) for channel in channels]
    costs = [each for _, found in told for each in found]
    for process in started:
        process.join()
    return Change(max(each.decided for each in costs) - begin, sum(spent for spent, _ in told), costs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--victims", choices=["first", "last"], default="last")
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    arguments = parser.parse_args()
    print(f"the {arguments.victims} host of {HOST} dies; {arguments.processes} processes; per survivor: median (most)")
    print("members | all decided | processor | requests      | bytes read, view aside")
    for count in arguments.members:
        with served(arguments.store) as store:
            seconds, processor, costs = measure(count, arguments.processes, arguments.victims, store)
        requests, read = sorted(each.requests for each in costs), sorted(each.read - each.view for each in costs)
        asked = f"{statistics.median(requests):.0f} ({requests[-1]})"
        got = f"{statistics.median(read):.0f} ({read[-1]}); the view {max(each.view for each in costs)}"
        print(f"{count:7} | {seconds * 1000:8.0f} ms | {processor:7.2f} s | {asked:13} | {got}")
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
