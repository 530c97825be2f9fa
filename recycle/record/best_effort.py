"""What is written only for looking at a run: where it cannot be written, the run goes on without it.

Everything of that kind is written under a ``BestEffort``: recordings, TensorBoard's files, pictures, the console.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from recycle.errors import EndedBySignal, UserError
from recycle.files import own_folder
from recycle.threads import CallsThatMayHang

PATIENCE = 5.0
"""Seconds for which a file is waited for. A run waits no longer for a file server that does not answer."""

_PART = 1 << 16
"""Bytes of a file that are read at once."""


class BestEffort:
    """A block under it writes one kind of output; what it cannot write is left out, with a warning, until it can again.

    Args:
        what: it is, for the user.
        warn: told when it fails, and when it succeeds again.
    """

    def __init__(self, what: str, warn: Callable[[str], None]) -> None:
        self._what = what
        self._warn = warn
        self._fails = False

    def __enter__(self) -> None:
        """Nothing is written yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Pass over an error of the system's, and over no other one."""
        if error is None:
            if self._fails:
                self._fails = False
                self._warn(f"{self._what} is written again")
            return False
        if isinstance(error, EndedBySignal) or not isinstance(error, OSError | UserError):
            return False
        if not self._fails:
            self._fails = True
            text = f"{self._what} cannot be written: {error.strerror}" if isinstance(error, OSError) else str(error)
            self._warn(f"{text}; the run does without it until it can be")
        return True


class GrowingFile:
    """A file of one process that grows by whole pieces, each on its way to disk when it was added.

    A file that was removed, or moved with its folder, is begun anew where it was. A piece that takes long to write
    is not waited for, and those that come before it is written are left out.

    Args:
        path: the file; it is made, with its folder, when the first piece is added.
        head: what comes before the pieces of this process.
        output: under which it is written.
        end: the byte that each piece ends with, if there is one. What follows the last one was left unfinished by a
            process that was killed.
    """

    def __init__(self, path: Path, head: bytes, output: BestEffort, end: bytes = b"") -> None:
        self._path = path
        self._head = head
        self._output = output
        self._end = end
        self._calls = CallsThatMayHang(PATIENCE)
        self._handle: int | None = None
        self._is_closed = False
        self._whole = 0
        self._before = head

    def add(self, piece: bytes) -> None:
        """Add a piece as a whole, or leave it out, as whatever comes after the end."""
        with self._output:
            self._calls.make(partial(self._add, piece))

    def close(self) -> None:
        """Write no more."""
        self._is_closed = True
        with suppress(OSError):
            self._calls.make(self._close)

    def _add(self, piece: bytes) -> None:
        if self._is_closed:
            return
        if self._handle is not None and not self._is_in_place(self._handle):
            self._close()
        if self._handle is None:
            self._handle, self._before = self._open(), self._head
        self._write(self._handle, self._before + piece)
        self._before = b""

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _is_in_place(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self._path.stat())
        except FileNotFoundError:
            return False

    def _open(self) -> int:
        own_folder(self._path.parent)
        handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._whole = os.fstat(handle).st_size
        while self._whole and self._end:
            start = max(self._whole - _PART, 0)
            # A file that is mapped would hang with all threads of this process.
            found = os.pread(handle, self._whole - start, start).rfind(self._end)
            self._whole = start + found + 1
            if found >= 0:
                break
        return handle

    def _write(self, handle: int, content: bytes) -> None:
        if os.fstat(handle).st_size > self._whole:
            os.ftruncate(handle, self._whole)
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]
        self._whole += len(content)
