"""Programs that are forked from a process that has imported what they import, as long as this process lives.

That is most of what a short run asks of the processor. All workers of a test session have them forked from one process.
"""

import atexit
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from multiprocessing.connection import Pipe
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from harness.hosts import Host
from harness.paths import python_path
from harness.processes import send_signal

TRAINER = "recycle.megatron.gpt.training"
TRAINING_CODE = "harness.scripts.training_code"
"""What can be imported before: the project's own trainer, or Megatron's training code as it is without CUDA."""


class Forked:
    """A process that leads a session of its own, with what of ``subprocess.Popen`` is needed of it.

    Args:
        words: what comes after ``python``: ``-m`` and a module or else a script, and arguments.
        variables: all of its environment; what of them is read by an import is so too late.
        folder: that it works in.
        imported: what was imported before.
        host: where it runs; None for this machine.
        output: the number of a file that it and those below it print to, errors too; None for ``stdout``.

    Attributes:
        stdout: what they print; None where that is read elsewhere.
        pid: of the process, as this machine knows it.
        returncode: its exit status, as soon as that was asked for after its end; None before.
    """

    def __init__(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        folder: Path,
        imported: str = TRAINER,
        host: Host | None = None,
        output: int | None = None,
    ) -> None:
        self._words = list(words)
        self.stdout: TextIO | None = None
        writer = output
        if writer is None:
            reader, writer = os.pipe()
            self.stdout = os.fdopen(reader)
        self._answers, answers = Pipe(duplex=False)
        request = [self._words, dict(variables), str(folder.resolve()), None if host is None else host.first]
        with answers:
            socket.send_fds(_forks(imported), [json.dumps(request).encode()], [writer, answers.fileno()])
        if output is None:
            os.close(writer)
        self.pid = int(self._answers.recv_bytes())
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is not None:
            self.kill_all()
        if self.stdout is not None:
            self.stdout.close()
        self.wait()

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, after it has ended.

        Raises:
            TimeoutExpired: it has not within so many seconds.
        """
        if self.returncode is None:
            if not self._answers.poll(timeout):
                assert timeout is not None
                raise subprocess.TimeoutExpired(self._words, timeout)
            self.returncode = int(self._answers.recv_bytes())
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            send_signal(self.pid, number)

    def terminate(self) -> None:
        """Tell it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def kill_all(self) -> None:
        """End it and all of its session."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


@cache
def _forks(imported: str) -> socket.socket:
    """What is asked for programs; its process is started by the first worker that needs it."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
    # A session within a test may have another interpreter, and other packages.
    kind = blake2b(f"{sys.executable} {python_path()} {imported}".encode(), digest_size=8).hexdigest()
    name = f"\0forks {session} {kind}"
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while door.connect_ex(name):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            if not _is_bound(listener, name):
                continue
            listener.listen()
            _start_forks(listener, imported)

    def leave() -> None:
        # An empty request is the last one: what this process has forked and left may have the door open for longer.
        with door, suppress(OSError):
            door.send(b"")

    atexit.register(leave)
    return door


def _is_bound(listener: socket.socket, name: str) -> bool:
    """Whether a name is this process's now, and not another one's."""
    try:
        listener.bind(name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _start_forks(listener: socket.socket, imported: str) -> None:
    words = [sys.executable, "-m", "harness.scripts.forks", str(listener.fileno()), imported]
    # Torch reads them when it is imported.
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(), "TORCH_CPP_LOG_LEVEL": "FATAL"}
    process = subprocess.Popen(words, env=os.environ | variables, pass_fds=[listener.fileno()])

    def end() -> None:
        process.kill()
        process.wait()

    atexit.register(end)
