"""A keeper's writer of checkpoints: versions are put together from what all keepers have of them."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from recycle.errors import UserError
from recycle.files import resolved
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.keep.fetching import Fetching, ask_all
from recycle.runtime.keep.layout import put_together
from recycle.runtime.step.checkpoint import write_shard
from recycle.state.channel import Write
from recycle.state.client import KeeperClient
from recycle.state.errors import KeeperLost, Refused
from recycle.state.ladder import find_whole


class CheckpointWriter:
    """Writes versions in torch.distributed.checkpoint's format, one at a time; it is VersionWriter.

    Args:
        token: the run's.
        within: the folder in which it writes, and nowhere else, whatever it is asked for.
    """

    def __init__(self, token: str, within: Path) -> None:
        self._token = token
        self._within = resolved(within)
        self._lock = threading.Lock()
        # One at a time, so that one version at most is in memory; the cores are the trainers'.
        self._thread = ThreadPoolExecutor(1, "writes a version", lambda: torch.set_num_threads(1))
        self._asked: dict[Write, Future[Sequence[str]]] = {}

    def write(self, request: Write) -> Sequence[str] | None:
        """See VersionWriter."""
        if not resolved(Path(request.folder)).is_relative_to(self._within):
            raise Refused(f"{request.folder} is not in {self._within}, where this run's keepers write")
        with self._lock:
            if request not in self._asked:
                self._asked[request] = self._thread.submit(self._write, request)
            if not self._asked[request].done():
                return None
            done = self._asked.pop(request)
        try:
            return done.result()
        except (UserError, ConnectionLost) as error:
            raise Refused(str(error)) from error

    def _write(self, request: Write) -> Sequence[str]:
        """Write a version; gives what somebody should know of the way there."""
        keepers = [KeeperClient(address, self._token, name) for name, address in request.keepers]
        copies = [copy for answer in ask_all(keepers) if not isinstance(answer, KeeperLost) for copy in answer]
        whole = find_whole(copies).get(request.stage, {}).get(request.version, ())
        parts = [each for each in whole if each.rank == request.rank]
        if not parts:
            raise ConnectionLost(f"no keeper has version {request.version} of stage {request.stage} any more")
        warnings: list[str] = []
        fetching = Fetching({each.name: each for each in keepers}, request.near, request.pieces, warnings.append)
        version, _ = fetching.fetch(request.version, parts, copies)
        state = {_name_on_disk(name, request.prefix): each for name, each in put_together(version).items()}
        write_shard(Path(request.folder), state)
        return warnings


def _name_on_disk(name: str, prefix: str) -> str:
    """A tensor's name without what its own begins with here; what comes before says what it is of a parameter."""
    kind, _, own = name.rpartition("/")
    return f"{kind}/{own.removeprefix(prefix)}"
