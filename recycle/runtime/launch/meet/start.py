"""How this process was started with others: by torchrun, by Slurm's srun, or with torchrun's variables set by hand."""

import errno
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import msgspec

from recycle.control.membership.addresses import (
    EVERYWHERE,
    LOOPBACK,
    OWN,
    NamedHost,
    address_for_others,
    interfaces,
    is_loopback,
    listen_at,
    look_up,
    own_addresses,
    source_towards,
)
from recycle.runtime.errors import RunError
from recycle.runtime.launcher_variables import number_in

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun gives to each process, and who starts them by hand has to."""

SLURM_VARIABLES = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
"""What srun gives to each task; a batch script itself has not both."""

FIRST_PORT, PORTS = 20_000, 12_000
"""Under srun, a job's port follows from its number, unless MASTER_PORT is given; Linux gives away those from 32768."""

ADDRESS = "--address an address of this machine, or one of its interfaces"
"""How a user chooses one where there is an option for it."""


class Start(msgspec.Struct, frozen=True):
    """What a process knows of those that were started with it.

    Attributes:
        rank: its number, from 0.
        count: how many processes there are.
        node: which of the launcher's nodes it is on; empty where nobody says.
        host: where the first process is.
        port: of the store there.
        served: whether the store is in a process of torchrun's. Otherwise the first process has to make it.
        attempt: which of torchrun's attempts this is.
        job: torchrun's name for the job; empty where it was not torchrun.
        nodes: how many there are; 0 where nobody says.
        by_slurm: whether Slurm's variables say so, which a shell may have that srun has not started.
    """

    rank: int
    count: int
    node: str
    host: str
    port: int
    served: bool = False
    attempt: str = "0"
    job: str = ""
    nodes: int = 0
    by_slurm: bool = False

    def listen(self) -> socket.socket:
        """In the first process: take the address of the store.

        Raises:
            ControlError: it cannot be used.
        """
        # It imports torch, which takes seconds, and much is refused before that.
        from recycle.control.store.tcp_store import listen

        remedy = "give all processes a free MASTER_PORT, and a MASTER_ADDR of the host of the first one"
        return listen(self.host, self.port, remedy)

    @property
    def is_on_one_host(self) -> bool:
        """Whether all processes are on this host, as their launcher or the address of the first one says."""
        return self.nodes == 1 or self.host in (*OWN, LOOPBACK, "::1")

    @property
    def prefix(self) -> str:
        """Of this start's keys, in a store that others use as well."""
        return f"recycle/{self.attempt}"

    def variables(self) -> dict[str, str]:
        """The same as torchrun says it to code that reads its variables."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.count),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
        }


def find_start(environment: Mapping[str, str]) -> Start | None:
    """What the environment says about the start of this process; None where it was started alone.

    Raises:
        RunError: it contradicts itself, or torchrun was told to start processes again, or to take in others.
    """
    if all(name in environment for name in VARIABLES):
        rank, count = _rank_among(environment, "RANK", "WORLD_SIZE")
        restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "0")
        if restarts != "0":
            raise RunError(
                f"torchrun --max-restarts {restarts}: it would kill all servers of a host to start one again, and here "
                "the others go on by themselves; take --max-restarts 0"
            )
        return Start(
            rank,
            count,
            environment.get("GROUP_RANK", ""),
            environment["MASTER_ADDR"],
            _numbers(environment, "MASTER_PORT")[0],
            environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
            environment.get("TORCHELASTIC_RUN_ID", ""),
            _numbers({"GROUP_WORLD_SIZE": "0"} | dict(environment), "GROUP_WORLD_SIZE")[0],
        )
    if all(name in environment for name in SLURM_VARIABLES) and environment["SLURM_STEP_NUM_TASKS"] != "1":
        return _from_slurm(environment)
    return None


def variables_of_task(environment: Mapping[str, str]) -> dict[str, str]:
    """What torch has to be told in a task of srun's; nothing if it was told, or if this is none.

    Raises:
        RunError: the environment contradicts itself.
    """
    start = None if "RANK" in environment else find_start(environment)
    return {} if start is None else {"LOCAL_RANK": environment.get("SLURM_LOCALID", "0")} | start.variables()


def _from_slurm(environment: Mapping[str, str]) -> Start:
    rank, count = _rank_among(environment, *SLURM_VARIABLES)
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    host = environment.get("MASTER_ADDR") or first_of(nodes)
    if not host:
        raise RunError("SLURM_JOB_NODELIST and MASTER_ADDR are not set: give MASTER_ADDR, the host of the first task")
    if "MASTER_PORT" in environment:
        port = _numbers(environment, "MASTER_PORT")[0]
    else:
        port = FIRST_PORT + _numbers({"SLURM_JOB_ID": "0"} | dict(environment), "SLURM_JOB_ID")[0] % PORTS
    nodes_known = _numbers({"SLURM_STEP_NUM_NODES": "0"} | dict(environment), "SLURM_STEP_NUM_NODES")[0]
    return Start(rank, count, environment.get("SLURM_NODEID", ""), host, port, nodes=nodes_known, by_slurm=True)


def first_of(nodes: str) -> str:
    """The first of Slurm's list of nodes, such as ``node[01-03,07],other``."""
    match = re.match(r"([^\[,]*)(?:\[(\w+)[^\]]*\])?([^,]*)", nodes)
    assert match is not None, "the pattern matches any text"
    return "".join(part or "" for part in match.groups())


def refuse_elastic(words: Sequence[str]) -> None:
    """Refuse a torchrun that lets others join.

    Args:
        words: the command line of the process that has started this one.

    Raises:
        RunError: it was told to.
    """
    if not any(Path(word).name == "torchrun" or word == "torch.distributed.run" for word in words):
        return
    nodes, backend = _told(words, "nnodes", "1"), _told(words, "rdzv-backend", "static")
    least, _, most = nodes.partition(":")
    ranges = most not in ("", least)
    if ranges or (least != "1" and backend != "static"):
        given = f"--nnodes {nodes}" if ranges else f"--rdzv-backend {backend}"
        raise RunError(
            f"torchrun {given}: it would kill all servers whenever a host joins; give one number of nodes, with "
            "--rdzv-backend static, --node-rank and --master-addr; docs/reference/return.md says how hosts come back"
        )


def _told(words: Sequence[str], option: str, default: str) -> str:
    """What torchrun was told, in its command line or else in the environment."""
    for word, following in pairwise((*words, "")):
        name, _, value = word.partition("=")
        if name.replace("_", "-") == f"--{option}":
            return value or following
    return os.environ.get(f"PET_{option.replace('-', '_').upper()}", default)


def words_of_parent() -> tuple[str, ...]:
    """The command line of the process that has started this one; empty where it cannot be read."""
    with suppress(OSError):
        return tuple(Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace").split("\0"))
    return ()


def choose_address(given: str | None, start: Start | None, ask: str = ADDRESS) -> str:
    """The address of this machine where other servers reach it.

    Args:
        given: an address or the name of an interface, if the user has given one.
        start: how this process was started; None where all servers are on this machine.
        ask: what the user has to give where it cannot be used, before the names of the interfaces.

    Raises:
        RunError: this machine has no such address or interface, or the first host is not known.
    """
    if given is not None:
        return _given_address(given, ask)
    if start is None:
        return LOOPBACK
    try:
        first = look_up(start.host)
        # On one host, any of its own addresses will do.
        if first.misleads and start.nodes != 1:
            return _address_for_others(f"MASTER_ADDR {start.host}", first, ask)
        return address_towards(first)
    except OSError as error:
        raise RunError(
            f"MASTER_ADDR {start.host}: {error.strerror}; give the name or the address of the first host"
        ) from error


def address_towards(host: NamedHost) -> str:
    """The address of this machine from which it reaches another one.

    Raises:
        OSError: it does not know how.
    """
    refusal = OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
    for address in host.addresses:
        try:
            return source_towards(address)
        except OSError as error:
            refusal = error
    raise refusal


def _given_address(given: str, ask: str) -> str:
    """What the user means by an address, a name, or an interface of this machine."""
    of_interface = [each.address for each in own_addresses() if each.interface == given]
    if not of_interface and given in (name for _, name in socket.if_nameindex()):
        raise RunError(f"interface {given}: it has no address; give another one")
    try:
        host = NamedHost(given, (of_interface[0],)) if of_interface else look_up(given)
        if host.misleads:
            return _address_for_others(f"address {given}", host, ask)
        if host.addresses[0] in EVERYWHERE.values():
            raise OSError(errno.EADDRNOTAVAIL, "it is that of no machine")
        with listen_at(host.addresses[0], 0):
            return host.addresses[0]
    except OSError as error:
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise RunError(f"address {given} cannot be used: {error.strerror}; give {ask}: {known}") from error


def _address_for_others(what: str, host: NamedHost, ask: str) -> str:
    """The address at which others reach this machine, where its own name says none."""
    own = own_addresses()
    if all(is_loopback(each.address) for each in own):
        return host.addresses[0]  # there are no others
    chosen = address_for_others()
    if chosen is None:
        raise RunError(
            f"{what}: on {socket.gethostname()} that is {host.addresses[0]}, which no other host reaches, as its "
            f"/etc/hosts may say; give {ask}, one at which the others reach it: {', '.join(interfaces(own))}"
        )
    return chosen


def _rank_among(environment: Mapping[str, str], name: str, of_all: str) -> tuple[int, int]:
    """The rank of this process, and how many there are."""
    rank, count = _numbers(environment, name, of_all)
    if rank >= count:
        raise RunError(f"{name} is {rank}, and must be less than {of_all}, {count}: set both as torchrun or srun does")
    return rank, count


def _numbers(environment: Mapping[str, str], *names: str) -> list[int]:
    return [number_in(environment, name) for name in names]
