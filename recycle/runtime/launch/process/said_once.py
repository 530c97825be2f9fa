"""What one process says for all."""

import secrets
from contextlib import suppress
from pathlib import Path

from recycle.control.membership.doors import HostDoor
from recycle.control.membership.errors import StoreLost
from recycle.control.store.sealed_values import SealedValues
from recycle.runtime.net.endpoint import Endpoint
from recycle.saying import say

PATIENCE = 15.0
"""Seconds to wait for the store."""


def is_first_to_say(endpoint: Endpoint, text: str) -> bool:
    """Whether no other process has said a text yet; where the store that knows is lost, none on this machine."""
    own = secrets.token_bytes(8)
    try:
        return SealedValues(endpoint.connect(PATIENCE), endpoint.token).compare_set(f"said/{text}", b"", own) == own
    except StoreLost:
        return _is_first_here(endpoint.token, text)


def _is_first_here(run: str, text: str) -> bool:
    """Whether no process of a run that is still there on this machine has said a text."""
    said = None
    with suppress(OSError):
        said = HostDoor(run, f"said/{text}").claim()
    if said is None:
        return False
    # It is taken until the process ends.
    said.detach()
    return True


def say_launcher_lost(endpoint: Endpoint, folder: Path) -> None:
    """Say that the first process takes no more lines to show, once for all that are left.

    Args:
        endpoint: of the store.
        folder: of the run.
    """
    if is_first_to_say(endpoint, "launcher"):
        say(f"the first process does not answer; the run goes on, and recycle watch {folder} shows it")
