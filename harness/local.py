"""The local launcher: n processes of this machine, forked from one that has imported everything they need."""

import gc
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch
from torch.distributed import Store, TCPStore

from recycle.control.host.children import die_with
from recycle.errors import RunFailed
from recycle.runtime.launch.process.messages import (
    ErrorMessage,
    FailureMessage,
    Message,
    ReportMessage,
    decode,
    encode,
    run_and_tell,
)
from recycle.runtime.launch.process.signals import TAKEN, EndSignals

HOST = "127.0.0.1"


class ProcessFailed(RunFailed):
    """A process raised, or was killed; the others were ended.

    Attributes:
        detail: where it happened, for whoever looks into it.
    """

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class LocalProcess:
    """What a launched process knows of its launcher.

    Attributes:
        rank: its number, from 0.
        count: how many processes there are.
        port: where the launcher's store listens on this machine.
    """

    def __init__(self, rank: int, count: int, port: int, channel: Connection) -> None:
        self.rank = rank
        self.count = count
        self.port = port
        self._channel = channel

    def store(self) -> Store:
        """A connection to the store, which lives in the launcher and so outlives every process."""
        return TCPStore(HOST, self.port, is_master=False, timeout=timedelta(seconds=60))

    def report(self, content: bytes) -> None:
        """Send something to the launcher."""
        self.send(ReportMessage(content))

    def send(self, message: Message) -> None:
        """Send a message to the launcher."""
        self._channel.send_bytes(encode(message))


def launch(
    count: int,
    body: Callable[[LocalProcess], None],
    receive: Callable[[int, bytes], None] = lambda rank, content: None,
    threads: int = 1,
) -> None:
    """Run a function in n processes and wait for all of them; if one fails, the others are ended.

    Args:
        count: how many processes.
        body: what each of them runs. It may close over anything, because the processes are forked.
        receive: called here with a rank and what it reported.
        threads: torch's threads in each process.

    Raises:
        UserError: a process raised one; RunFailed if it was that.
        ProcessFailed: a process raised anything else, or was killed.
        EndedAtOnce: this process was told to end, and has ended the others.
    """
    with EndSignals(lambda: False):
        _launch(count, body, receive, threads)


def _launch(
    count: int, body: Callable[[LocalProcess], None], receive: Callable[[int, bytes], None], threads: int
) -> None:
    listener = socket.create_server((HOST, 0), backlog=4096)
    port = listener.getsockname()[1]
    context = multiprocessing.get_context("fork")
    channels: dict[Connection, int] = {}
    processes: list[ForkProcess] = []
    store: TCPStore | None = None
    try:
        # Whoever is told to end knows all that it has forked; and the store starts threads, which a fork would lose.
        with _signals_put_off():
            for rank in range(count):
                reader, writer = context.Pipe(duplex=False)
                member = LocalProcess(rank, count, port, writer)
                process = context.Process(target=_run, args=(body, member, threads, listener, os.getpid()))
                process.start()
                writer.close()
                channels[reader] = rank
                processes.append(process)
        store = TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        _watch(channels, processes, receive)
    finally:
        with _signals_put_off():
            for process in processes:
                if process.is_alive():
                    process.kill()
            for process in processes:
                process.join()
        del store


def _run(
    body: Callable[[LocalProcess], None], member: LocalProcess, threads: int, listener: socket.socket, launcher: int
) -> None:
    def work() -> int:
        die_with(launcher)
        _end_with_launcher()
        # The garbage of the parent stays: what of it has had threads would wait for them, which are not here.
        gc.freeze()
        listener.close()
        torch.set_num_threads(threads)
        body(member)
        return 0

    # Not the usual way out: destroying groups whose other ends are gone can take seconds.
    os._exit(run_and_tell(work, member.send))


def _watch(
    channels: dict[Connection, int], processes: list[ForkProcess], receive: Callable[[int, bytes], None]
) -> None:
    open_channels = dict(channels)
    while open_channels:
        for ready in wait(list(open_channels)):
            assert isinstance(ready, Connection)
            rank = open_channels[ready]
            try:
                message = decode(ready.recv_bytes())
            except EOFError:
                del open_channels[ready]
                _require_success(rank, processes[rank])
                continue
            match message:
                case ReportMessage(content):
                    receive(rank, content)
                case ErrorMessage():
                    raise message.as_error()
                case FailureMessage(detail):
                    _require_alive(processes)
                    raise ProcessFailed(f"process {rank} of {len(processes)} failed: {message.summary}", detail)
                case _:
                    raise AssertionError(f"process {rank} says {message}")


def _require_alive(processes: list[ForkProcess]) -> None:
    """Where one process was killed, its peers fail because of it: it is named and not they."""
    time.sleep(0.1)
    for rank, process in enumerate(processes):
        if process.exitcode is not None and process.exitcode < 0:
            raise ProcessFailed(f"process {rank} of {len(processes)} was killed by signal {-process.exitcode}")


def _require_success(rank: int, process: ForkProcess) -> None:
    deadline = time.monotonic() + 10
    while process.exitcode is None and time.monotonic() < deadline:
        process.join(0.1)
    if process.exitcode:
        end = f"was killed by signal {-process.exitcode}" if process.exitcode < 0 else f"ended with {process.exitcode}"
        raise ProcessFailed(f"process {rank} {end}")


@contextmanager
def _signals_put_off() -> Iterator[None]:
    """Within it, this thread takes none of the signals; those that come are taken after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_launcher() -> None:
    """In a process that was forked while signals were put off: SIGTERM ends it, and Ctrl-C is for the launcher."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN)
