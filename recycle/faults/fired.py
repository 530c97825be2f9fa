"""What fired: a line per fault, on disk before the fault takes effect, because a killed process says nothing after."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from recycle.faults.errors import FaultError
from recycle.faults.menu import Fault, Faults
from recycle.files import read_bytes
from recycle.job import Server
from recycle.record.best_effort import BestEffort

LAUNCHER = "launcher"


class FiredLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault that fired.

    Attributes:
        time: nanoseconds of the monotonic clock, which all processes of a machine share.
        by: the server that did it to itself, or ``launcher``.
        incarnation: of that server.
        kind: what happened.
        fault: the whole fault in words.
    """

    time: int
    by: str
    incarnation: int
    kind: str
    fault: str


class FiredFile:
    """The file that all processes of a run append to.

    Args:
        path: the file; made if it is not there.
        warn: told where it cannot be written or read.
        server: who writes; None for the launcher.
        incarnation: of the server.
    """

    def __init__(
        self, path: Path, warn: Callable[[str], None], server: Server | None = None, incarnation: int = 0
    ) -> None:
        self._path = path
        self._output = BestEffort(str(path), warn)
        self._by = LAUNCHER if server is None else str(server)
        self._incarnation = incarnation
        # Where a run goes on, what fired before is not of this start.
        self._earlier = 0
        with self._output:
            self._earlier = path.stat().st_size if path.is_file() else 0

    def write(self, fault: Fault, time_ns: int) -> None:
        """Add a fault that is about to take effect; the line outlives this process when this returns."""
        line = FiredLine(time_ns, self._by, self._incarnation, fault.kind.value, str(fault))
        # One write of an appending file: the lines of several processes do not mix.
        with self._output:
            # A pipe would wait for its other end.
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
            with os.fdopen(handle, "ab", buffering=0) as file:
                file.write(msgspec.json.encode(line) + b"\n")

    def unfired(self, faults: Faults) -> tuple[Fault, ...]:
        """The faults that have a step, and yet did not fire since this file was opened; none if that is not known.

        Those that only have a time may have been due after the end of the run.
        """
        with self._output:
            fired = {line.fault for line in load_fired(self._path, self._earlier)}
            return tuple(fault for fault in faults.entries if fault.step is not None and str(fault) not in fired)
        return ()


def load_fired(path: Path, earlier: int = 0) -> tuple[FiredLine, ...]:
    """What fired in a run, in order of time; nothing where there is no file.

    Args:
        path: the file.
        earlier: how many of its bytes are left out.

    Raises:
        UserError: the file cannot be read.
        FaultError: it is no such file.
    """
    if not path.exists():
        return ()
    try:
        lines = msgspec.json.Decoder(FiredLine).decode_lines(read_bytes(path)[earlier:])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FaultError(f"{path}: this is no list of fired faults: {error}") from error
    return tuple(sorted(lines, key=lambda line: line.time))
