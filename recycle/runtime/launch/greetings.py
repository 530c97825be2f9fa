"""What processes that were started apart say of themselves before a run, and what keeps them from training together."""

from collections.abc import Collection, Sequence
from typing import Annotated

import msgspec
import torch

from recycle.control.messages import differs
from recycle.version import __version__


class KeeperOffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a process can have its host's keeper, or where that is already.

    Attributes:
        port: where other hosts reach it; 0 where there are none.
        memory: bytes that the host has left.
    """

    port: Annotated[int, msgspec.Meta(ge=0, lt=2**16)] = 0
    memory: Annotated[int, msgspec.Meta(ge=0)] = 0


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
    loopback = {each.host for each in hellos if each.address.startswith("127.")}
    others = {each.host for each in hellos} - loopback
    if loopback and others:
        name = min(loopback)
        return (
            f"{name}: its address is that of no network, so {min(others)} cannot reach it; give MASTER_ADDR an address "
            f"instead of a name, or choose an interface with --address, under the flag with GLOO_SOCKET_IFNAME"
        )
    return ""


def other_release(difference: str, host: str, first: str) -> str:
    """What a user is told where a host differs from the first one."""
    return f"{host}: {difference} on {first}: install the same release on all hosts"


def other_count(count: int, host: str, firsts: int, first: str) -> str:
    """What a user is told where a process was told of more or fewer processes than the first one."""
    return (
        f"{host}: a process was told that there are {count}, and the first one, on {first}, that there are {firsts}: "
        "start all with the same number, and where these are two jobs, give each a MASTER_PORT of its own"
    )


def lonely_stages(stages: Sequence[Collection[int]], hosts: Sequence[str], ranks: int = 1) -> dict[int, str]:
    """The stages of which one host can take all servers along, and which, where there are several hosts.

    Args:
        stages: that the server of each process holds.
        hosts: of each process.
        ranks: of a server, which follow each other; it dies with any of them.
    """
    if len(set(hosts)) < 2:
        return {}
    fatal: dict[int, set[str]] = {}
    for place in range(0, len(hosts), ranks):
        own = set(hosts[place : place + ranks])
        for stage in stages[place]:
            fatal[stage] = fatal.get(stage, own) & own
    return {stage: min(found) for stage, found in sorted(fatal.items()) if found}
