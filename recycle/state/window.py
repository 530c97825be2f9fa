"""Windows: memory that processes hand each other, mapped by one of them for as long as it comes again and again.

To copy there takes a fraction of what calls take, which go page by page; to map it takes as long as such a call.
"""

import ctypes
import mmap
import os
import threading
from contextlib import suppress

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
