"""What processes that were started apart say of themselves before a run, and what keeps them from training together."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
import torch

from recycle.control.membership.addresses import family_of, is_loopback
from recycle.control.membership.messages import differs
from recycle.runtime.launch.meet.start import SLURM_VARIABLES, VARIABLES, Start
from recycle.version import __version__

CHOICE = "--address, under the flag with GLOO_SOCKET_IFNAME"
"""How a user chooses the address at which others reach a host."""


MOST_SHOWN = 8
"""Of processes that have not come."""


class KeeperOffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a process can have its host's keeper, or where that is already.

    Attributes:
        port: where other hosts reach it; 0 where there are none.
        memory: bytes that the host has for a keeper: those that are left, and those that one there has already.
        epoch: of the first view of which that one has nothing.
    """

    port: Annotated[int, msgspec.Meta(ge=0, lt=2**16)] = 0
    memory: Annotated[int, msgspec.Meta(ge=0)] = 0
    epoch: Annotated[int, msgspec.Meta(ge=0)] = 0


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process says of itself.

    Attributes:
        host: the name of its machine.
        node: which of the launcher's nodes that is.
        address: where others reach it.
        release: what must be the same for all, by name.
        keeper: what it offers for its host's keeper.
        identity: nobody else's.
        count: how many processes it was told that there are.
    """

    host: str
    node: str
    address: str
    release: dict[str, str]
    keeper: KeeperOffer = KeeperOffer()
    identity: str = ""
    count: int = 0


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the first process answers all others.

    Attributes:
        digest: of the run's token, which is in the run's folder and not here, where strangers may read.
        watch: where the first process listens.
        release: what must be the same for all, by name.
        refusal: why there is no run; empty if there is one.
        count: how many processes were told that they are in it.
    """

    digest: str
    watch: tuple[str, int]
    release: dict[str, str]
    refusal: str = ""
    count: int = 0


def read_hello(found: bytes, rank: int) -> Hello:
    """What a process says of itself; another release may say it in another way."""
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(found, type=Hello)
    return Hello(f"the host of process {rank}", "", "", {"recycle": "another release"})


def read_welcome(found: bytes) -> Welcome:
    """What the first process answers; another release may say it in another way."""
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(found, type=Welcome)
    return Welcome("", ("", 0), {"recycle": "another release"})


def release() -> dict[str, str]:
    """What must be the same in all processes of a run."""
    return {"recycle": __version__, "torch": str(torch.__version__)}


def why_not(hellos: Sequence[Hello]) -> str:
    """Why some processes cannot train together; empty if they can."""
    first = hellos[0]
    for hello in hellos:
        difference = differs(hello.release, first.release)
        if difference:
            return other_release(difference, hello.host, first.host)
        if hello.count != first.count:
            return other_count(hello.count, hello.host, first.count, first.host)
    loopback = {each.host for each in hellos if is_loopback(each.address)}
    others = {each.host for each in hellos} - loopback
    if loopback and others:
        name = min(loopback)
        return (
            f"{name}: its address is that of no network, so {min(others)} cannot reach it; give MASTER_ADDR an address "
            f"instead of a name, or choose an interface with {CHOICE}"
        )
    by_family = {family_of(each.address): each for each in hellos}
    if len(by_family) > 1:
        old, new = by_family[socket.AF_INET], by_family[socket.AF_INET6]
        return (
            f"{new.host}: its address {new.address} is one of IPv6, and that of {old.host}, {old.address}, is none, so "
            f"they cannot reach each other; choose addresses of one kind with {CHOICE}"
        )
    return ""


def absent(start: Start, missing: Sequence[int], within: str = "") -> str:
    """What is said of processes that have not come.

    Args:
        start: of a process that waits for them.
        missing: their ranks.
        within: in which time they should have.
    """
    text = f"{_processes(missing, f' of {start.count}')} not come{within}"
    if len(missing) < start.count - 1 or start.rank in missing:
        return text
    names = " and ".join(SLURM_VARIABLES if start.by_slurm else VARIABLES[:2])
    remedy = (
        "if srun has not started this command, the shell has them from salloc or srun --pty: start it by srun, or "
        "unset them"
        if start.by_slurm
        else "start the others as well, or unset them if there are none"
    )
    return f"{text}: {names} say that this is process {start.rank} of {start.count}; {remedy}"


def other_secret(ranks: Sequence[int], remedy: str) -> str:
    """What is said of processes that have come with another secret; they may be strangers.

    Args:
        ranks: theirs, as they say.
        remedy: how all processes get the same secret.
    """
    return f"{_processes(ranks)} another secret: where that is no stranger, {remedy}"


def _processes(ranks: Sequence[int], of: str = "") -> str:
    more, many = len(ranks) - MOST_SHOWN, len(ranks) > 1
    shown = ", ".join(map(str, ranks[:MOST_SHOWN])) + (f" and {more} more" if more > 0 else "")
    return f"process{'es' * many} {shown}{of} {'have' if many else 'has'}"


def other_release(difference: str, host: str, first: str) -> str:
    """What a user is told where a host differs from the first one."""
    return f"{host}: {difference} on {first}: install the same release on all hosts"


def other_count(count: int, host: str, firsts: int, first: str) -> str:
    """What a user is told where a process was told of more or fewer processes than the first one."""
    return (
        f"{host}: a process was told that there are {count}, and the first one, on {first}, that there are {firsts}: "
        "start all with the same number, and where these are two jobs, give each a MASTER_PORT of its own"
    )
