"""NCCL's own functions, in the library that torch has loaded.

Torch's process groups for NCCL are not used: they make communicators when they are first needed, have a watchdog that
ends the process, and know no call that gives up all communicators of a process at once.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch

from recycle.runtime.errors import RunError

Kind = Literal["send", "receive", "sum", "maximum", "reduce", "broadcast"]
"""Of a call: a sum and a maximum come to all ranks, and what is reduced is a sum that comes to one."""


class Call(NamedTuple):
    """What one rank has a communicator do; with others, it makes up an operation.

    Attributes:
        kind: see Kind.
        tensor: where it is done.
        peer: the rank at the other end, or the one that gets the sum or has what all others get.
    """

    kind: Kind
    tensor: torch.Tensor
    peer: int = -1


LIBRARY = "libnccl.so.2"
SUCCESS, IN_PROGRESS = 0, 7

TYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
_SUM, _MAXIMUM = 0, 2
_UNDEFINED = -(2**31)
_MAGIC = 0xCAFEBEEF
_CONFIGURED = 21805
"""The release whose configuration this is; later ones fill in what they have besides."""


class UniqueId(ctypes.Structure):
    """What the ranks of a communicator find each other by."""

    _fields_ = (("content", ctypes.c_byte * 128),)


class Configuration(ctypes.Structure):
    """``ncclConfig_t``, as of ``_CONFIGURED``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("least_ctas", ctypes.c_int),
        ("most_ctas", ctypes.c_int),
        ("network", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )


Handle = int
"""Of a communicator."""


class Functions(Protocol):
    """What the transport needs of NCCL; every method of it returns at once, but for ``abort``.

    No two of a communicator's are called at the same time.
    """

    release: int

    def unique_id(self) -> bytes:
        """Make what the ranks of a communicator find each other by."""

    def join(self, unique_id: bytes, rank: int, size: int) -> Handle:
        """Begin to make a communicator, of the device that is this thread's."""

    def in_progress(self, communicator: Handle) -> bool:
        """Whether what was begun in a communicator is not yet on its way.

        Raises:
            RuntimeError: it went wrong.
        """

    def start(self, calls: Sequence[Call], communicator: Handle, stream: int) -> None:
        """Put an operation into a stream: calls that go on at once, and of which none waits for another."""

    def abort(self, communicator: Handle) -> None:
        """End all that is under way in a communicator; it is no more.

        It waits for what is being launched, and for the device to be done with it. That can be behind what is under way
        in other communicators, so those of a process are given up beside each other and not in turn.
        """


class Nccl:
    """NCCL in this process; it is Functions. Errors are RuntimeErrors.

    Args:
        library: what the loader finds it by.

    Raises:
        RunError: torch has none, or one too old.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library: Any = ctypes.CDLL(library)
            version = ctypes.c_int()
            self._library.ncclGetVersion(ctypes.byref(version))
        except (OSError, AttributeError) as error:
            raise RunError(
                f"transport is nccl: {library} cannot be loaded ({error}): use a torch that is built for CUDA, or "
                "leave the transport to gloo"
            ) from error
        self.release = version.value
        if self.release < _CONFIGURED:
            raise RunError(
                f"transport is nccl: NCCL is of release {self.release}, and {_CONFIGURED} is the first that can be "
                "given up here: use a newer torch, or leave the transport to gloo"
            )
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        self._library.ncclGetLastError.restype = ctypes.c_char_p
        self._library.ncclCommInitRankConfig.argtypes = (
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_int,
            UniqueId,
            ctypes.c_int,
            ctypes.POINTER(Configuration),
        )

    def unique_id(self) -> bytes:
        """See Functions."""
        made = UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(made))
        return bytes(made.content)

    def join(self, unique_id: bytes, rank: int, size: int) -> Handle:
        """See Functions."""
        handle = ctypes.c_void_p()
        name = UniqueId.from_buffer_copy(unique_id)
        undefined = [_UNDEFINED] * 3
        configuration = Configuration(
            ctypes.sizeof(Configuration), _MAGIC, _CONFIGURED, 0, *undefined, None, _UNDEFINED
        )
        self._call("ncclCommInitRankConfig", ctypes.byref(handle), size, name, rank, ctypes.byref(configuration))
        if handle.value is None:
            raise RuntimeError("NCCL has made no communicator")
        return handle.value

    def in_progress(self, communicator: Handle) -> bool:
        """See Functions."""
        state = ctypes.c_int()
        self._call("ncclCommGetAsyncError", ctypes.c_void_p(communicator), ctypes.byref(state))
        self._require(state.value)
        return state.value == IN_PROGRESS

    def start(self, calls: Sequence[Call], communicator: Handle, stream: int) -> None:
        """See Functions."""
        self._call("ncclGroupStart")
        try:
            for kind, tensor, peer in calls:
                assert tensor.is_contiguous(), "NCCL takes contiguous tensors"
                name, places, how = {
                    "sum": ("ncclAllReduce", 2, (_SUM,)),
                    "maximum": ("ncclAllReduce", 2, (_MAXIMUM,)),
                    "reduce": ("ncclReduce", 2, (_SUM, peer)),
                    "broadcast": ("ncclBroadcast", 2, (peer,)),
                    "send": ("ncclSend", 1, (peer,)),
                    "receive": ("ncclRecv", 1, (peer,)),
                }[kind]
                place, count = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel())
                ends = ctypes.c_void_p(communicator), ctypes.c_void_p(stream)
                self._call(name, *[place] * places, count, _type(tensor), *how, *ends)
        finally:
            self._call("ncclGroupEnd")

    def abort(self, communicator: Handle) -> None:
        """See Functions.

        It is not revoked before: where a communicator is in progress, releases up to 2.30.7 at least then go on with
        memory that they have freed. Nor are several aborted in a group, where one whose launch waits for the device
        would keep the others from being told.
        """
        self._library.ncclCommAbort(ctypes.c_void_p(communicator))

    def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., int] = getattr(self._library, name)
        self._require(function(*arguments))

    def _require(self, result: int) -> None:
        if result not in (SUCCESS, IN_PROGRESS):
            last = self._library.ncclGetLastError(None).decode()
            error = self._library.ncclGetErrorString(result).decode()
            raise RuntimeError(f"NCCL: {error}" + (f": {last}" if last else ""))


def _type(tensor: torch.Tensor) -> int:
    found = TYPES.get(tensor.dtype)
    assert found is not None, f"NCCL carries no {tensor.dtype}"
    return found
