"""How long a view change takes, and what it asks of the store, with many members: the protocol alone, without training.

Usage: python -m benchmarks.membership [--members 256 1024] [--processes 8] [--victims first|last]

Machine, board and gathering are the real ones, and so is the store that they meet in, which a process of its own
serves. The members are threads of a few processes, and so are the hosts that they are said to be on: one host of 8
servers dies, which one agent says of each. The time is counted from right before the first of these deaths is told
until the last survivor has the verdict and would build its groups.
"""

import argparse
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from types import SimpleNamespace
from typing import Any, NamedTuple, Self, cast

import msgspec

from harness.examples import paper_job
from recycle.control.board import Board
from recycle.control.durations import Durations
from recycle.control.events import (
    Action,
    Built,
    Decided,
    Event,
    Halted,
    Noticed,
    Propose,
    PublishReport,
    RaiseAlarm,
    Rebuild,
)
from recycle.control.machine import Machine
from recycle.control.messages import Death, Verdict
from recycle.control.store import Store
from recycle.control.tcp_store import TorchStore, listen, serve
from recycle.control.view import Member, View
from recycle.job import Job
from recycle.runtime.recover.gathering import Gathering
from recycle.runtime.recover.store_connection import StoreConnection

HOST = 8
DURATIONS = Durations(silence=60.0, answer=120.0)
TOKEN = "token"
PATIENCE = 120.0


class Cost(NamedTuple):
    """What a view change was for one member.

    Attributes:
        decided: when it had the verdict, on the monotonic clock in seconds.
        requests: to the store.
        read: bytes of what it got.
        view: bytes of these that are verdicts.
    """

    decided: float
    requests: int
    read: int
    view: int


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


class CountingStore:
    """A Store that counts what is asked of another one.

    Args:
        store: which.
    """

    def __init__(self, store: Store) -> None:
        self.requests = self.read = self.view = 0
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """See Store."""
        self.requests += 1
        self._store.set(key, value)

    def get(self, key: str) -> bytes | None:
        """See Store."""
        found = self._store.get(key)
        self._count(key, found)
        return found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        self.requests += 1
        found = self._store.get_many(keys)
        self.read += sum(len(each or b"") for each in found)
        return found

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See Store."""
        found = self._store.compare_set(key, expected, desired)
        self._count(key, found)
        return found

    def wait(self, key: str, timeout: float) -> bool:
        """See Store."""
        self.requests += 1
        return self._store.wait(key, timeout)

    def add(self, key: str, amount: int) -> int:
        """See Store."""
        self.requests += 1
        return self._store.add(key, amount)

    def delete(self, key: str) -> None:
        """See Store."""
        self.requests += 1
        self._store.delete(key)

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """See Store."""
        self.requests += 1
        self._store.delete_all(outlived)

    def clone(self) -> Self:
        """See Store."""
        return type(self)(self._store.clone())

    def clear(self) -> None:
        """Count from 0."""
        self.requests = self.read = self.view = 0

    def _count(self, key: str, found: bytes | None) -> None:
        self.requests += 1
        self.read += len(found or b"")
        if key == "view":
            self.view += len(found or b"")


class BareMember:
    """A survivor without a training: what it has to do with a view change, and nothing else.

    Args:
        member: who it is.
        job: what would be trained.
        port: of the store.
    """

    def __init__(self, member: Member, job: Job, port: int) -> None:
        self._store = CountingStore(TorchStore("127.0.0.1", port, PATIENCE))
        self._board = Board(self._store, TOKEN)
        self._gathering = Gathering(
            member, cast("StoreConnection", SimpleNamespace(board=self._board, durations=DURATIONS))
        )
        self._machine = Machine(member, job)
        self._rebuilt = False

    def begin(self, verdict: Verdict) -> None:
        """Be in a view from its verdict on, as if its groups stood."""
        self._machine.handle(Decided("begin", verdict))
        self._machine.handle(Built("built", verdict.epoch))
        self._store.clear()

    def change_view(self) -> Cost:
        """Wait for the alarm, and take part until there is a verdict."""
        machine, store, epoch = self._machine, self._store, self._machine.view.epoch
        while (alarm := self._board.failures.wait_alarm(epoch, 60.0)) is None:
            pass
        self._tell(Noticed("alarm", epoch, alarm.cause))
        self._tell(Halted("halted", epoch, 7, 6))
        while not self._rebuilt:
            for event in self._gathering.look(machine):
                self._tell(event)
                if self._rebuilt:
                    break
        return Cost(time.monotonic(), store.requests, store.read, store.view)

    def _tell(self, event: Event) -> None:
        queue = [event]
        while queue:
            for action in self._machine.handle(queue.pop(0)):
                queue += self._perform(action)

    def _perform(self, action: Action) -> list[Event]:
        match action:
            case RaiseAlarm(epoch, cause):
                self._gathering.raise_alarm(epoch, cause)
            case PublishReport(report):
                self._gathering.publish(report)
            case Propose(verdict):
                stored = self._gathering.propose(self._machine.view, verdict)
                return [Decided(f"view/{stored.epoch}", stored)]
            case Rebuild(verdict):
                assert not self._board.failures.unheard(verdict), "a death was told too late"
                self._rebuilt = True
            case _:
                raise AssertionError(f"nobody does {action}")
        return []


def run_members(
    members: Sequence[Member], job: Job, port: int, verdict: Verdict, ready: Barrier, channel: Connection
) -> None:
    """Be some members, a thread each, in one view change."""
    costs: list[Cost] = []
    begun = threading.Barrier(len(members) + 1)

    def work(member: Member) -> None:
        # Each by itself: some names are looked up for seconds where no name server answers.
        one = BareMember(member, job, port)
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


def measure(count: int, processes: int, victims: str) -> Change:
    """One view change.

    Args:
        count: how many members there are, the victims included.
        processes: how many they share.
        victims: whether the first host dies, with who leads, or the last one.
    """
    job = paper_job(pipelines=count // HOST, stages=HOST, micro_batches=2)
    view = View.among(job.servers())
    verdict = Verdict(0, tuple(map(str, view.members)), 7)
    dead = view.members[:HOST] if victims == "first" else view.members[-HOST:]
    alive = [each for each in view.members if each not in set(dead)]
    context = multiprocessing.get_context("spawn")
    listener = listen()
    port = listener.getsockname()[1]
    server = context.Process(target=_serve, args=(listener,), daemon=True)
    server.start()
    board = Board(TorchStore("127.0.0.1", port), TOKEN)
    board.verdicts.propose(verdict)
    ready = context.Barrier(processes + 1)
    channels, started = [], []
    for number in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        arguments: tuple[Any, ...] = (alive[number::processes], job, port, verdict, ready, theirs)
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
    server.kill()
    server.join()
    return Change(max(each.decided for each in costs) - begin, sum(spent for spent, _ in told), costs)


def _serve(listener: socket.socket) -> None:
    served = serve(listener)
    signal.pause()
    del served


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--victims", choices=["first", "last"], default="last")
    arguments = parser.parse_args()
    print(f"the {arguments.victims} host of {HOST} dies; {arguments.processes} processes; per survivor: median (most)")
    print("members | all decided | processor | requests      | bytes read, view aside")
    for count in arguments.members:
        seconds, processor, costs = measure(count, arguments.processes, arguments.victims)
        requests, read = sorted(each.requests for each in costs), sorted(each.read - each.view for each in costs)
        asked = f"{statistics.median(requests):.0f} ({requests[-1]})"
        got = f"{statistics.median(read):.0f} ({read[-1]}); the view {max(each.view for each in costs)}"
        print(f"{count:7} | {seconds * 1000:8.0f} ms | {processor:7.2f} s | {asked:13} | {got}")
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
