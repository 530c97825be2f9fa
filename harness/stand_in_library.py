"""The stand-in for NCCL that is a library, and the transport over NCCL, as it is, over that.

Ranks are processes here, NCCL's functions are called as they are over NCCL, and an operation of a dead partner never
ends. Tensors lie in host memory, and what runs on no GPU has no streams: a lane counts what the library was given.
"""

import atexit
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import count
from pathlib import Path

import torch

from harness.stand_in_transport import CPU, WholeNetwork, connects_by
from recycle.runtime.net.nccl.bindings import Nccl
from recycle.runtime.net.nccl.library import NcclLibrary
from recycle.runtime.net.network import NetworkOptions

SOURCE = Path(__file__).parent / "stand_in_nccl" / "nccl.c"
FOLDER = "STAND_IN_NCCL_FOLDER"
ONE_QUEUE = "CUDA_DEVICE_MAX_CONNECTIONS"
LOOK = 0.0005
_NUMBERS = count(1)


def lacking() -> str:
    """Why the library cannot be had here; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "it waits by a futex, and shares memory as Linux does"
    return "" if shutil.which("cc") else "there is no compiler"


@cache
def built() -> Path:
    """The library, compiled; it is there as long as this process is."""
    folder, shared = (Path(tempfile.mkdtemp(prefix="stand-in-nccl-", dir=each)) for each in (None, "/dev/shm"))
    for each in (folder, shared):
        atexit.register(shutil.rmtree, each, ignore_errors=True)
    # Where all of a communicator's ranks are killed while it is made, nobody takes its file away.
    os.environ[FOLDER] = str(shared)
    path = folder / "libnccl.so.2"
    command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{path.name}"]
    subprocess.run([*command, "-o", str(path), str(SOURCE)], check=True)
    return path


class HostMark:
    """A place after what a lane was given so far; see DeviceMark."""

    def __init__(self, lane: "HostLane", given: int) -> None:
        self._lane, self._given = lane, given

    def query(self) -> bool:
        """See DeviceMark."""
        return self._lane.let_go() >= self._given


class HostLane:
    """See DeviceLane. It keeps tensors until what they were given to is over, as torch keeps the memory of a stream."""

    def __init__(self, path: Path) -> None:
        self.number = next(_NUMBERS)
        self._library = ctypes.CDLL(str(path))
        for each in (self._library.stand_in_given, self._library.stand_in_over):
            each.restype = ctypes.c_long
        self._name = ctypes.c_void_p(self.number)
        self._held: dict[int, Sequence[torch.Tensor]] = {}

    def follow(self, tensors: Sequence[torch.Tensor]) -> None:
        """See DeviceLane: what comes next runs as soon as it is given."""
        self._held[self._library.stand_in_given(self._name) + 1] = tensors

    def mark(self) -> HostMark:
        """See DeviceLane."""
        return HostMark(self, self._library.stand_in_given(self._name))

    def within(self) -> AbstractContextManager[None]:
        """See DeviceLane: there is no other one."""
        return nullcontext()

    def precede(self, mark: HostMark, _: Sequence[torch.Tensor]) -> None:
        """See DeviceLane: what comes next is computed by this thread, which waits as a device would."""
        while not mark.query():
            time.sleep(LOOK)

    def let_go(self) -> int:
        """How many operations are over; their tensors are free."""
        over = int(self._library.stand_in_over(self._name))
        for each in [number for number in self._held if number <= over]:
            del self._held[each]
        return over


def nccl_library(path: Path, options: NetworkOptions, check: Callable[[], None] = lambda: None) -> NcclLibrary:
    """What makes communicators over the stand-in.

    Args:
        path: of it.
        options: how ranks meet.
        check: raises when the view is over.
    """
    return NcclLibrary(CPU, options.transfer_timeout, check, Nccl(str(path)), lambda _: HostLane(path))


def connect_over(path: Path, one_queue: bool) -> Callable[..., WholeNetwork]:
    """What the transport offers, as ``recycle.runtime.net.connect.connect`` does, to a process that has used it never.

    Args:
        path: of the library.
        one_queue: whether all that a process starts runs one after the other.
    """

    def make(options: NetworkOptions, check: Callable[[], None]) -> NcclLibrary:
        os.environ[ONE_QUEUE] = "1" if one_queue else "8"
        return nccl_library(path, options, check)

    return connects_by(make)
