"""The store over torch's TCPStore, which a run has anyway because its process groups meet there."""

import ctypes
import errno
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
from torch.distributed import DistError, DistStoreError, PrefixStore, TCPStore
from torch.distributed import Store as Meeting

from recycle.control.membership.addresses import LOOPBACK, listen_by_name, place, reach
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.membership.open_files import not_reached, why_none_opens
from recycle.control.membership.vanished import end_all_with_host
from recycle.control.store import counted_log
from recycle.control.store.store import Entries, Store

_NO_VALUE = b"\0no value"
_LOG_LEVEL = "FLAGS_caffe2_log_level"
_ERROR = 2


_REMEDY = "give another port, 0 for any free one, or an address of this machine"


def listen(host: str = LOOPBACK, port: int = 0, remedy: str = _REMEDY) -> socket.socket:
    """Take an address for a store. It is apart from ``serve`` because a served store has threads, which no fork keeps.

    Args:
        host: the address to bind to, or a name by which others know it; whoever reaches it can reach the store.
        port: 0 for any free one.
        remedy: what to do where it cannot be used.

    Raises:
        ControlError: the address cannot be used.
    """
    try:
        if not 0 <= port < 1 << 16:
            raise OSError(errno.EINVAL, "a port is between 0 and 65535")
        return listen_by_name(host, port)
    except OSError as error:
        raise ControlError(f"store address {place(host, port)} cannot be used: {error.strerror}; {remedy}") from error


def serve(listener: socket.socket) -> TCPStore:
    """Serve a store on an address taken by ``listen``, for as long as the result is kept."""
    host, port = listener.getsockname()[:2]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def log_errors_only() -> None:
    """Have torch's C++ log no warnings in this process from here on, whenever it was imported.

    For every wait that expires it logs the names of both ends of the connection. It asks the name server for them,
    often with addresses that are none, and that can take many seconds; and waits for an alarm expire all the time.
    TORCH_CPP_LOG_LEVEL does the same, but is read when torch is imported, which may be before anybody has set it.
    """
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(torch._C.__file__), _LOG_LEVEL)  # noqa: SLF001 - it links to what has it
    except ValueError:
        return  # this torch logs in another way, and at worst waits take longer
    level.value = max(level.value, _ERROR)


class TorchStore(Store):
    """A connection to a served store. It must not be used on both sides of a fork.

    Args:
        host: where the store is served.
        port: on which port.
        patience: how long to wait for an answer while connecting, in seconds. Where nobody listens there is no wait.
        prefix: of all keys, in a store that is not this run's alone.

    Attributes:
        torch_store: torch's own object.

    Raises:
        StoreLost: there is no store.
    """

    def __init__(self, host: str, port: int, patience: float = 10.0, prefix: str = "") -> None:
        self._address = host, port
        self._patience = patience
        self._prefix = prefix
        log_errors_only()
        with self._reached():
            # Torch goes on trying for all its patience where nobody listens; this finds out at once.
            address = reach(host, port, patience)
            store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=patience))
        # Torch limits no request but a wait.
        end_all_with_host(address, port)
        self._whole: Meeting = store
        self.torch_store: Meeting = PrefixStore(prefix, store) if prefix else store

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """See Store."""
        with self._reached():
            for key, value in values.items():
                self.torch_store.set(key, value)  # type: ignore[arg-type]  # the stubs say str; bytes are what it stores
            # A set is not answered, so the first one to a store that is gone succeeds: only a round trip finds out.
            self.torch_store.check(list(values))

    def get(self, key: str) -> bytes | None:
        """See Store."""
        # Torch's own get waits for the key. A failing compare-and-set is the one request that does not.
        found = self._compare_set(key, _NO_VALUE, _NO_VALUE)
        return None if found == _NO_VALUE else found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See Store."""
        found = self.get_all(keys)
        return [self._look(key) for key in keys] if found is None else [*found]

    def get_all(self, keys: Sequence[str]) -> list[bytes] | None:
        """See Store."""
        wanted = list(keys)
        with self._reached(), suppress(DistStoreError):  # one was deleted meanwhile
            # Torch waits for keys that are missing.
            if self.torch_store.check(wanted):
                return list(self.torch_store.multi_get(wanted))
        return None

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See Store."""
        found = self._compare_set(key, expected, desired)
        # Where there is nothing, torch answers with what was expected.
        if expected and found == expected and self.get(key) is None:
            return b""
        return found

    def wait(self, key: str, timeout: float) -> bytes | None:
        """See Store."""
        end = time.monotonic() + timeout
        with self._reached():
            while (left := end - time.monotonic()) > 0:
                try:
                    self.torch_store.wait([key], timedelta(seconds=left))
                except DistStoreError:
                    return None
                if (found := self._look(key)) is not None:
                    return found
        return None

    def add(self, key: str, amount: int) -> int:
        """See ``counted_log``."""
        with self._reached():
            return self.torch_store.add(key, amount)

    def append(self, log: str, *entries: bytes) -> None:
        """See Store."""
        counted_log.append(self, log, entries)

    def entries(self, log: str, after: int) -> Entries:
        """See Store."""
        return counted_log.entries(self, log, after)

    def wait_entry(self, log: str, after: int, timeout: float) -> bool:
        """See Store."""
        return counted_log.wait_entry(self, log, after, timeout)

    def delete(self, key: str) -> None:
        """See Store."""
        with self._reached():
            self.torch_store.delete_key(key)

    def delete_all(self, outlived: Callable[[str], bool]) -> None:
        """See Store."""
        below = f"{self._prefix}/" if self._prefix else ""
        with self._reached():
            # Torch itself cuts the prefix off keys that do not have it, and raises where they are too short.
            for key in [each.removeprefix(below) for each in self._all_keys() if each.startswith(below)]:
                if outlived(key):
                    self.torch_store.delete_key(key)

    def clone(self) -> "TorchStore":
        """See Store."""
        return TorchStore(*self._address, self._patience, self._prefix)

    def _all_keys(self) -> list[str]:
        """Those of the whole store; none where a stranger has given one a name that is no text."""
        try:
            return self._whole.list_keys()
        except UnicodeDecodeError:
            return []

    def _look(self, key: str) -> bytes | None:
        """The same as get, for keys that others wait for.

        Torch ends all waits for a key that is not there when somebody looks for it with a compare-and-set: if all who
        wait looked so, each would wake all others, without an end.
        """
        with self._reached():
            there = self.torch_store.check([key])
        return self.get(key) if there else None

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self._reached():
            return self.torch_store.compare_set(key, expected, desired)  # type: ignore[arg-type]  # as for set

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (DistError, OSError) as error:
            raise StoreLost(f"the store at {place(*self._address)} {not_reached(why_none_opens())}") from error
