"""Processes of an unprotected run that were started apart: each joins the others through a store."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store, TCPStore

from recycle.control.store.tcp_store import TorchStore, serve
from recycle.runtime.launch.meet.hosted import await_store
from recycle.runtime.launch.meet.start import Start
from recycle.runtime.launch.process.local import Process
from recycle.runtime.launch.process.messages import EndMessage, Message, ReportMessage, decode, encode
from recycle.runtime.net.gloo.threads import let_go

TIMEOUT = timedelta(hours=24)


class ApartProcess:
    """What a process knows of the others.

    Args:
        start: how they were started.
        say: tells the user for whom this process waits.

    Attributes:
        rank: its number, from 0.
        count: how many processes there are.

    Raises:
        ControlError: the address of the store cannot be used.
    """

    def __init__(self, start: Start, say: Callable[[str], None]) -> None:
        self.rank = start.rank
        self.count = start.count
        self._start = start
        self._server = serve(start.listen()) if self.rank == 0 and not start.served else None
        await_store(lambda: TorchStore(start.host, start.port), start, TIMEOUT.total_seconds(), say)
        self._served = self._connect()
        self._reported = 0

    def store(self) -> Store:
        """A connection to the store of this start of the processes."""
        return PrefixStore(self._start.prefix, self._connect())

    def report(self, content: bytes) -> None:
        """Send something to the leader."""
        self._leave(ReportMessage(content))

    def end(self) -> None:
        """Tell the leader that no more reports come."""
        self._leave(EndMessage())

    def gather(self, receive: Callable[[int, bytes], None]) -> None:
        """Take the reports of all, each process's in their order, until every one has ended."""
        store = PrefixStore("recycle/report", self._connect())
        going = dict.fromkeys(range(self.count), 0)
        while going:
            for rank, number in list(going.items()):
                key = f"{rank}/{number}"
                message = decode(store.get(key))
                store.delete_key(key)
                going[rank] += 1
                match message:
                    case ReportMessage(content):
                        receive(rank, content)
                    case EndMessage():
                        del going[rank]
                    case _:
                        raise AssertionError(f"process {rank} says {message}")

    def _leave(self, message: Message) -> None:
        store: Any = PrefixStore("recycle/report", self._served)  # its stubs know text only
        store.set(f"{self.rank}/{self._reported}", encode(message))
        self._reported += 1

    def _connect(self) -> TCPStore:
        return TCPStore(self._start.host, self._start.port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)


def join(
    start: Start,
    body: Callable[[Process], None],
    receive: Callable[[int, bytes], None],
    say: Callable[[str], None],
    threads: int = 1,
) -> None:
    """Run this process's part, as ``launch`` runs all parts; the first one also takes what all report.

    Args:
        start: how the processes were started.
        body: what each of them runs.
        receive: called in the first one with a rank and what it reported.
        say: tells the user for whom this process waits.
        threads: torch's threads in each process.

    Raises:
        UserError: this process's part raised one.
    """
    process = ApartProcess(start, say)
    torch.set_num_threads(threads)
    listener = threading.Thread(target=process.gather, args=(receive,), daemon=True)
    if process.rank == 0:
        listener.start()
    body(process)
    process.end()
    if process.rank == 0:
        listener.join()
    let_go()
