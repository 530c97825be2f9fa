"""A segment: memory without a name, which processes hand each other, gone when the last has let go of it."""

import os
import threading
from typing import Self

from recycle.state.errors import KeeperLost
from recycle.state.window import MemoryWindow, give_back, look_through


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
            KeeperLost: it was closed.
        """
        with self._lock:
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
            KeeperLost: it was closed, or is shorter.
        """
        with self._lock:
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
