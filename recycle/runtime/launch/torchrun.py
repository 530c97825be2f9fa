"""Processes that torchrun has started: each joins the others through torchrun's store instead of being forked here."""

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store, TCPStore

from recycle.runtime.errors import RunError
from recycle.runtime.launch.local import Process
from recycle.runtime.launch.messages import EndMessage, Message, ReportMessage, decode, encode
from recycle.runtime.net.gloo.threads import let_go

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = timedelta(hours=24)


def under_torchrun() -> bool:
    """Whether this process was started by torchrun."""
    return all(name in os.environ for name in VARIABLES)


def is_leader() -> bool:
    """Whether this process speaks for all: the only one without torchrun, the first one under it."""
    return not under_torchrun() or os.environ["RANK"] == "0"


class TorchrunProcess:
    """What a process knows of the others from torchrun's environment.

    Attributes:
        rank: its number, from 0.
        count: how many processes there are.
    """

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.count = int(os.environ["WORLD_SIZE"])
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._served = self._connect(is_master=self.rank == 0 and not agent)
        self._reported = 0

    def store(self) -> Store:
        """A connection to the store of this start of the processes."""
        return PrefixStore(f"recycle/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", self._connect())

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

    def _connect(self, *, is_master: bool = False) -> TCPStore:
        return TCPStore(*self._address, is_master=is_master, wait_for_workers=False, timeout=TIMEOUT)


def join(count: int, body: Callable[[Process], None], receive: Callable[[int, bytes], None], threads: int = 1) -> None:
    """Run this process's part, as ``launch`` runs all parts; the leader also takes what all report.

    Args:
        count: how many processes there must be.
        body: what each of them runs.
        receive: called on the leader with a rank and what it reported.
        threads: torch's threads in each process.

    Raises:
        RunError: torchrun started another number of processes.
        UserError: this process's part raised one.
    """
    process = TorchrunProcess()
    if process.count != count:
        raise RunError(
            f"WORLD_SIZE is {process.count}, and the plan has {count} live servers, a process each: "
            f"start torchrun with {count} processes in all"
        )
    torch.set_num_threads(threads)
    listener = threading.Thread(target=process.gather, args=(receive,), daemon=True)
    if process.rank == 0:
        listener.start()
    body(process)
    process.end()
    if process.rank == 0:
        listener.join()
    let_go()
