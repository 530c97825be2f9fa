"""The join file: where a run's store is, and the token without which nobody can take part."""

import hashlib
import secrets
from pathlib import Path
from typing import Self

import msgspec

from recycle.control.board.run_folder import identity
from recycle.control.membership.errors import ControlError
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.files import from_json, read_bytes, write_whole

JOIN_FILE = "join.json"
"""Its name, in the run's folder."""


def new_token() -> str:
    """A secret for one run."""
    return secrets.token_hex(32)


def digest_of(token: str) -> str:
    """What tells tokens apart where strangers can read it."""
    return hashlib.sha256(token.encode()).hexdigest()


class JoinFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process needs to take part in a run.

    Attributes:
        host: where the launcher is, and the store that it serves.
        port: of that store; 0 if it is reached on that host alone.
        watch: the port at which the launcher listens on the same host; 0 likewise.
        token: the run's secret.
        prefix: of the run's keys, in a store that is not its alone.
        cluster: where the store is in etcd, and how that lets one in; None where the run serves its own.
        folder: which one the run has; a copy of the file, in another one, is not that run's.
        nonce: of which the token was made with a secret that is not here; empty where it was made of nothing.
    """

    host: str
    port: int
    watch: int
    token: str
    prefix: str = ""
    cluster: EtcdCluster | None = None
    folder: str = ""
    nonce: str = ""

    def write(self, path: Path) -> None:
        """Write the file, with its folder, so that nobody but its owner can read it, at no moment.

        Raises:
            UserError: it cannot be written.
        """
        here = msgspec.structs.replace(self, folder=identity(path.parent))
        write_whole(path, msgspec.json.encode(here) + b"\n", private=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file of a run.

        Raises:
            UserError: it cannot be read, or is no join file.
        """
        try:
            return from_json(read_bytes(path), cls)
        except msgspec.DecodeError as error:
            raise ControlError(f"{path}: is not the join file of a run: {error}") from error


def last_start(folder: Path) -> JoinFile | None:
    """Of the last start of a run in a folder; None if there was none in this one, of which it may be a copy.

    Args:
        folder: with its join file.
    """
    path = folder / JOIN_FILE
    try:
        last = JoinFile.read(path) if path.exists() else None
        return last if last is not None and last.folder == identity(folder) else None
    except ControlError:
        return None


def last_token(folder: Path) -> str:
    """The token of that; empty if there was none."""
    last = last_start(folder)
    return "" if last is None else last.token
