"""Waiting for what is sent and received, in a way that can be given up."""

import ctypes
from datetime import timedelta

import torch
from torch.distributed import Work

from recycle.runtime.errors import RunError
from recycle.runtime.net.gloo.releases import TRIED

# Both have a public ``abort`` for this purpose, but torch's Python does not show it.
_KINDS = ("SendWork", "RecvWork")
_ABORT = "_ZN4c10d16ProcessGroupGloo8{}5abortEv"
_VTABLE = "_ZTVN4c10d16ProcessGroupGloo8{}E"
# Of a table of virtual functions, before its first function.
_TABLE_HEAD = 2 * ctypes.sizeof(ctypes.c_void_p)


class Waits:
    """Waits for transfers, one after another, until another thread gives them up.

    Gloo forgets a receive whose message had begun to arrive when its connection broke, and a send that it was about to
    begin then: no cut of a connection wakes who waits for it, only its time-out. So the wait itself is aborted.

    Raises:
        RunError: this torch has other names for that.
    """

    def __init__(self) -> None:
        self._waited_for: Work | None = None
        self._given_up = False
        library = ctypes.CDLL(torch._C.__file__)  # noqa: SLF001 - the library that has it is among those it needs
        try:
            self._aborts = {
                ctypes.addressof(ctypes.c_char.in_dll(library, _VTABLE.format(kind))) + _TABLE_HEAD: getattr(
                    library, _ABORT.format(kind)
                )
                for kind in _KINDS
            }
        except (AttributeError, ValueError) as error:
            raise RunError(
                f"torch {torch.__version__} cannot give up what it transfers ({error}): use torch {' or '.join(TRIED)}"
            ) from error

    def wait(self, work: Work, timeout: timedelta) -> None:
        """Wait for a transfer.

        Raises:
            RuntimeError: it will never come to its end.
        """
        # In this order, because it may be given up between any two lines.
        self._waited_for = work
        if self._given_up or not work.wait(timeout):
            # It is not let go of here: what is still transferred of it would have no place.
            raise RuntimeError("the transfer was given up")
        self._waited_for = None

    def give_up(self) -> None:
        """Make the wait for a transfer raise, the present one and all later ones; for another thread."""
        self._given_up = True
        work = self._waited_for
        if work is not None:
            self._abort(work)

    def _abort(self, work: Work) -> None:
        """Make the wait for a send or a receive end with ``False``, now or as soon as it begins."""
        # Python's object holds the address of C++'s right behind its head, and that begins with its table of functions.
        address = ctypes.c_void_p.from_address(id(work) + object.__basicsize__).value
        assert address is not None
        function = self._aborts.get(ctypes.c_void_p.from_address(address).value or 0)
        assert function is not None, f"{work} is no transfer of gloo's in this release of torch"
        function(ctypes.c_void_p(address))
