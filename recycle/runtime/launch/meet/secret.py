"""The secret that the processes of a start share before they meet: it never travels over what it protects.

It is in a file or the environment that the user gives, or in a file that processes make for themselves: on one host in
a folder of the user's own, and for those that share a run's folder in that. The run's token is made of it and of a
number that anybody may read.
"""

import hashlib
import hmac
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from recycle.files import own_folder, read_bytes
from recycle.runtime.errors import RunError

TOKEN, TOKEN_FILE = "RECYCLE_TOKEN", "RECYCLE_TOKEN_FILE"
"""Of the environment: the secret, and a file that holds it."""

LEAST = 16
"""Characters of a secret that a user gives."""

SECRET = "secret"
"""The name of the file that processes make."""

_MADE = 64
_PATIENCE, _LOOK = 5.0, 0.02
"""Seconds that who makes a file may take to fill it, and between two looks."""


def given_secret(file: Path | None, environment: Mapping[str, str]) -> str:
    """The secret that the user gives; empty if none is given.

    Args:
        file: that an option names.
        environment: of this process.

    Raises:
        UserError: the file cannot be read, or what is given is too short to be a secret.
    """
    named = environment.get(TOKEN_FILE, "")
    path = file or (Path(named) if named else None)
    given = environment.get(TOKEN, "") if path is None else read_bytes(path).decode(errors="replace")
    secret = given.strip()
    if not secret and path is None:
        return ""
    if len(secret) < LEAST:
        raise RunError(
            f"{TOKEN if path is None else path}: a secret has {LEAST} characters at least; make one with "
            "openssl rand -hex 32"
        )
    return secret


def secret_of_host() -> str:
    """What all processes of this user find on this host, and nobody else can.

    Raises:
        RunError: somebody else has made the folder, or may write or read there.
    """
    own, folder = os.geteuid(), _folder_here()
    try:
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        found = folder.lstat()
    except OSError as error:
        raise RunError(f"{folder}: cannot be made: {error.strerror}; {_OTHERWISE}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != own or stat.S_IMODE(found.st_mode) & 0o077:
        raise RunError(f"{folder}: it is no folder of this user's alone; remove it, or {_OTHERWISE}")
    return secret_in(folder)


def secret_in(folder: Path) -> str:
    """The secret in a folder that processes share, which whoever comes first makes for its owner alone.

    Args:
        folder: which; made if it is not there.

    Raises:
        RunError: it cannot be used, or others may read or write the secret.
    """
    path = folder / SECRET
    try:
        own_folder(folder)
        with suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w") as made:
                made.write(secrets.token_hex(_MADE // 2))
        deadline = time.monotonic() + _PATIENCE
        while True:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
                found = os.fstat(file.fileno())
                owners = os.geteuid(), path.parent.stat().st_uid
                is_own = stat.S_ISREG(found.st_mode) and found.st_uid in owners
                if not is_own or stat.S_IMODE(found.st_mode) & 0o077:
                    raise RunError(f"{path}: it is no file of this user's alone; remove it, or {_OTHERWISE}")
                content = file.read(_MADE)
            if len(content) == _MADE:
                return content
            if time.monotonic() > deadline:
                raise RunError(f"{path}: it holds no secret; remove it, or {_OTHERWISE}")
            time.sleep(_LOOK)
    except OSError as error:
        raise RunError(f"{path}: cannot be used: {error.strerror}; {_OTHERWISE}") from error


def corner_of(secret: str) -> str:
    """The part of a store that processes with a secret have to themselves before a run. It does not tell the secret."""
    return token_of(secret, "corner")[:16]


def token_of(secret: str, nonce: str) -> str:
    """The token of a run, which nobody can make who knows only the number.

    Args:
        secret: of the processes' start.
        nonce: a number for each run, that anybody may read.
    """
    # Paths are in some, which may be no UTF-8.
    return hmac.digest(secret.encode(), nonce.encode(errors="surrogateescape"), hashlib.sha256).hex()


_OTHERWISE = f"name a file with a secret in {TOKEN_FILE}"


def _folder_here() -> Path:
    """The same for all processes of a user on a host; anybody may make the second one first."""
    runtime, own = os.environ.get("XDG_RUNTIME_DIR"), os.geteuid()
    with suppress(OSError):
        if runtime and Path(runtime).stat().st_uid == own:
            return Path(runtime) / "recycle"
    return Path(tempfile.gettempdir()) / f"recycle-{own}"
