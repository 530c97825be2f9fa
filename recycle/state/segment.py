"""Segments: memory without a name, which processes hand each other, gone when the last has let go of it."""

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from recycle.state.errors import KeeperLost

_POPULATE_READ, _REMOVE = 22, 9
"""Advice of the kernel's: map all pages at once, with their neighbours; give them back."""


class MemoryWindow:
    """Some memory, mapped.

    Args:
        handle: of the memory.
        size: in bytes.
    """

    def __init__(self, handle: int, size: int) -> None:
        self._memory = mmap.mmap(handle, size)
        with suppress(OSError):  # a kernel that maps page by page
            self._memory.madvise(_POPULATE_READ)
        self._first = ctypes.c_char.from_buffer(self._memory)

    def fill(self, start: int, piece: memoryview) -> None:
        """Copy something there, while other threads go on.

        Args:
            start: to which byte on.
            piece: what; it can be written itself.
        """
        content = ctypes.c_char.from_buffer(piece)
        ctypes.memmove(ctypes.addressof(self._first) + start, ctypes.addressof(content), piece.nbytes)

    def part(self, start: int, size: int) -> memoryview:
        """Some of it.

        Args:
            start: from which byte on.
            size: how many.
        """
        return memoryview(self._memory)[start : start + size]


class Windows:
    """Those that were looked through last; for any number of threads.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: dict[int, MemoryWindow] = {}

    def find(self, handle: int, size: int) -> MemoryWindow | None:
        """That to some memory; None if it is new, because calls fill that more quickly.

        Args:
            handle: of the memory.
            size: in bytes.
        """
        with self._lock:
            number = os.fstat(handle).st_ino
            window = self._known.pop(number, None) or look_through(handle, size)
            if window is not None:
                self._known[number] = window
            while len(self._known) > self._most:
                del self._known[next(iter(self._known))]
            return window

    def close(self) -> None:
        """Keep none of them."""
        with self._lock:
            self._known.clear()


def look_through(handle: int, size: int) -> MemoryWindow | None:
    """A window to some memory; None if nothing has been there yet, or there is none left to map it.

    Args:
        handle: of the memory.
        size: in bytes.
    """
    if not os.fstat(handle).st_blocks:
        return None
    with suppress(OSError):
        return MemoryWindow(handle, size)
    return None


def give_back(handle: int, size: int) -> None:
    """Have some memory take no room any more, whoever has mapped it; it is zero from now on.

    Args:
        handle: of the memory.
        size: in bytes.
    """
    if size:
        with suppress(OSError), mmap.mmap(handle, size) as memory:
            memory.madvise(_REMOVE)


@contextmanager
def _usable() -> Iterator[None]:
    """Within the block, what the system refuses is a keeper less."""
    try:
        yield
    except OSError as error:
        raise KeeperLost(f"its memory cannot be used: {error.strerror}") from error


class Segment:
    """Memory that one process of a host has made and any other may get; for any number of threads.

    It is read by calls: what is mapped once only is copied no faster. It is written by calls or through a window.

    Args:
        handle: of the memory, which is closed with this.
        size: in bytes.

    Attributes:
        size: as above.
        window: through which it is written; None to do that by calls.
    """

    def __init__(self, handle: int, size: int) -> None:
        self.size = size
        self.window: MemoryWindow | None = None
        self._handle = handle
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self.close()

    @classmethod
    def make(cls, size: int) -> Self:
        """New memory.

        Args:
            size: in bytes.

        Raises:
            OSError: the system does not give it.
        """
        segment = cls(os.memfd_create("recycle"), size)
        os.ftruncate(segment.handle, size)
        return segment

    @property
    def handle(self) -> int:
        """By which another process gets it."""
        return self._handle

    def write(self, start: int, piece: memoryview) -> None:
        """Fill some of it.

        Args:
            start: from which byte on.
            piece: with what.

        Raises:
            KeeperLost: it was closed, or the system has no room for it.
        """
        with self._lock, _usable():
            self._require_open()
            if self.window is not None and not piece.readonly:
                self.window.fill(start, piece)
                return
            while piece:
                count = os.pwrite(self._handle, piece, start)
                start, piece = start + count, piece[count:]

    def read(self, start: int, piece: memoryview) -> None:
        """Copy some of it.

        Args:
            start: from which byte on.
            piece: to where.

        Raises:
            KeeperLost: it was closed, or is shorter, or there is no descriptor left.
        """
        with self._lock, _usable():
            self._require_open()
            # Others read at the same time.
            handle = os.dup(self._handle)
        try:
            while piece:
                count = os.preadv(handle, [piece], start)
                if not count:
                    raise KeeperLost(f"a part ends after {start} bytes")
                start, piece = start + count, piece[count:]
        finally:
            os.close(handle)

    def look_through(self) -> None:
        """Have a window to it from now on, if it was written before."""
        if self.window is None:
            self.window = look_through(self._handle, self.size)

    def give_back(self) -> None:
        """Have it take no room any more, whoever else has it; nothing is in it after this."""
        give_back(self._handle, self.size)

    def close(self) -> None:
        """Let go of it: no writing that has begun reaches it after this."""
        with self._lock:
            if self._handle >= 0:
                os.close(self._handle)
            self._handle = -1

    def _require_open(self) -> None:
        if self._handle < 0:
            raise KeeperLost("it was given up")
