"""Runs that are forked from one process that has imported Megatron, as long as this process lives."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.started import python_path


class ForkedRun:
    """A run and what it prints, for a with-block that ends with it; another one only begins after that.

    Args:
        ranks: how many processes it has.
        words: a module after ``-m``, or a script, and its arguments.
        variables: of all its processes.
        folder: that it works in.
    """

    def __init__(self, ranks: int, words: Sequence[str], variables: Mapping[str, str], folder: Path) -> None:
        self._forks = _forks()
        reader, writer = os.pipe()
        request = json.dumps([ranks, list(words), dict(variables), str(folder)]).encode()
        socket.send_fds(self._forks, [request], [writer])
        os.close(writer)
        self.stdout = os.fdopen(reader)
        self.pid = self._answer()
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.stdout.close()
        self.returncode = self._answer()

    def _answer(self) -> int:
        answer = self._forks.recv(100)
        assert answer, "the process that forks runs has ended"
        return int(answer)


@cache
def _forks() -> socket.socket:
    """What is asked for runs; its process is started for the first one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-W", "ignore", "-m", "harness.scripts.forked_runs", str(theirs.fileno())]
    # Torch reads it when it is imported.
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path()}
    process = subprocess.Popen(words, env=variables, pass_fds=[theirs.fileno()])
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
