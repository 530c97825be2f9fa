"""The processes of a run with their doors, for tests that attack them."""

import resource
from collections.abc import Collection
from contextlib import suppress
from itertools import product

from harness.processes import family, processes, title
from harness.sockets import listening
from recycle.control.membership.doors import HostDoor

FEW = 1024
"""Files that a process may have open, as at most logins."""

STORE = "recycle: store"


AGENT = "agent"
"""Of a name that an agent holds: it listens there and takes no connection."""


def names_of(token: str) -> dict[bytes, str]:
    """Of what listens within a host for a small run of a token, what it is."""
    lives = product(range(3), range(2), range(3))
    agents = {f"agent of W{pipeline}_{stage}#{life}": AGENT for pipeline, stage, life in lives}
    purposes = {each: each for each in ("keeper", "signs", "store", "launcher")} | agents
    return {next(HostDoor(token, each).names()): kind for each, kind in purposes.items()}


def everybody(first: int, token: str) -> set[int]:
    """All processes of a run, by the one that was started; a keeper and its guard are nobody's children."""
    found = family(first)
    for process in processes():
        names = {each.address for each in listening([process])} if title(process).startswith("recycle: keeper") else ()
        if not names_of(token).keys().isdisjoint(names):
            found.add(process)
    return found


def allow_few(processes: Collection[int]) -> None:
    """Let processes have so few files open that a stranger could use them up.

    Not a store of torch's: there, connections that say nothing count up to the limit of the system.
    """
    for each in processes:
        with suppress(ProcessLookupError):
            if title(each) != STORE or not any(isinstance(door.address, tuple) for door in listening([each])):
                resource.prlimit(each, resource.RLIMIT_NOFILE, (FEW, FEW))
