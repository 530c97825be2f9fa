"""Whether a process that was started apart has before it the run that the first one has begun."""

import socket
from pathlib import Path

from recycle.control.board.joinfile import JOIN_FILE, JoinFile, digest_of
from recycle.control.membership.messages import differs
from recycle.runtime.errors import RunError
from recycle.runtime.net.endpoint import Endpoint


def shared_token(folder: Path, digest: str, first: str) -> str:
    """The token of the run that the first process has begun, from the folder that all share.

    Args:
        folder: of the run.
        digest: of the token.
        first: the first process's host.

    Raises:
        RunError: it is another folder.
    """
    path = folder / JOIN_FILE
    token = JoinFile.read(path).token if path.exists() else ""
    if digest_of(token) != digest:
        raise RunError(
            f"{folder}: it is not the folder that the first process, on {first}, writes to; give --output a folder "
            "that all hosts share"
        )
    return token


def require_same(fingerprint: dict[str, str], endpoint: Endpoint) -> None:
    """Compare what this process would train with what the run does.

    Args:
        fingerprint: what must be the same, by name.
        endpoint: of the run's store.

    Raises:
        RunError: they differ.
    """
    description = endpoint.board().description()
    assert description is not None, "who admits has described the run"
    difference = differs(fingerprint, description.fingerprint)
    if difference:
        raise RunError(f"{socket.gethostname()}: {difference}: all hosts must train the same model on the same text")
