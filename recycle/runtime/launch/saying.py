"""What one process says for all."""

import sys
from collections.abc import Callable
from pathlib import Path

from recycle.control.errors import StoreLost
from recycle.runtime.net.endpoint import Endpoint

PATIENCE = 15.0
"""Seconds to wait for the store."""


def is_first_to_say(endpoint: Endpoint, text: str) -> bool:
    """Whether no other process has said a text yet; true where the store that knows is lost."""
    try:
        return endpoint.connect(PATIENCE).add(f"said/{text}", 1) == 1
    except StoreLost:
        return True


def say_launcher_lost(endpoint: Endpoint, events: Path, take_over: Callable[[], None]) -> None:
    """Say that the first process shows nothing any more, once for all that are left.

    Args:
        endpoint: of the store.
        events: the folder where everything is to be found.
        take_over: called in the one process that says so.
    """
    if is_first_to_say(endpoint, "launcher"):
        sys.stderr.write(f"recycle: the first process is gone; the run goes on, and writes to {events}\n")
        take_over()
