"""What recycle adds to the command line of a Megatron training script."""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from recycle.control.store.etcd_cluster import VARIABLE, EtcdCluster
from recycle.digits import parse_whole
from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.job import Server
from recycle.runtime.launch.meet.secret import TOKEN as TOKEN_VARIABLE
from recycle.runtime.launch.meet.secret import TOKEN_FILE
from recycle.runtime.launch.process.restarts import RESTARTS
from recycle.state.redundancy import OFF, Redundancy

SCHEDULE = "pipeline_schedule"
STOCK, RECYCLE = "stock", "recycle"
KEEP, RESUME, RECORD, DEAD = "--recycle-keep-in-memory", "--recycle-resume", "--recycle-record", "--recycle-dead"
STORE = "--recycle-store"
TOKEN, TRUST = "--recycle-token-file", "--recycle-trust-network"

REFUSED = UserError.exit_status
"""The exit status where what was asked for cannot be done."""


class Flags(NamedTuple):
    """The values of recycle's flags.

    Attributes:
        on: whether pipelines follow a plan; otherwise everything is Megatron's own.
        catalogue: plans made ahead of time; without one, a plan is made when training starts.
        dead: servers that leave before the first iteration; their micro-batches go to their peers.
        budget: seconds for making a plan.
        staggered: whether each stage steps on its own; otherwise Megatron's optimizer steps all of them together.
        exact: whether sums of gradients have the same bits whichever servers live.
        store: where servers agree on which servers live in etcd; None for the store with which they were started.
        restarts: how often within an hour the server of a crashed worker is started again.
        record: the folder in which the run is recorded; None if it is not.
        redundancy: how the state is kept in the memory of hosts; None if it is not.
        resumes: whether training goes on from what is left there of a start whose servers are all dead.
        token_file: with the secret that all hosts share; None where the environment or the host has it.
        trusts_network: whether several hosts may do without one.
    """

    on: bool
    catalogue: Path | None
    dead: tuple[Server, ...]
    budget: float
    staggered: bool = False
    exact: bool = False
    store: str | None = None
    restarts: int = RESTARTS
    record: Path | None = None
    redundancy: Redundancy | None = None
    resumes: bool = False
    token_file: Path | None = None
    trusts_network: bool = False


def owns_steps(flags: Flags) -> bool:
    """Whether stages are stepped by recycle, and not by Megatron's training code."""
    return flags.staggered or flags.exact


def add_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add recycle's flags to a parser, as Megatron's ``extra_args_provider`` does."""
    group = parser.add_argument_group(title="recycle")
    group.add_argument(
        "--pipeline-schedule",
        choices=[STOCK, RECYCLE],
        default=STOCK,
        help="stock: Megatron's own schedules. recycle: pipelines follow a plan that routes around dead servers.",
    )
    group.add_argument("--recycle-catalogue", help="Plans made with recycle catalogue.")
    group.add_argument(
        DEAD, default="", help="Servers that leave before the first iteration; their peers do their work: W1_2,W0_3."
    )
    group.add_argument("--recycle-budget", default="5s", help="Time for making a plan: 500ms, 5s, 1m.")
    group.add_argument(
        "--recycle-stagger",
        action="store_true",
        help="Each stage steps on its own, without waiting for the norm of the others.",
    )
    group.add_argument(
        "--recycle-exact", action="store_true", help="Failures change no bit of what is trained; costs time and memory."
    )
    group.add_argument(
        STORE,
        help="Where servers agree on the live ones, so that any host may be lost: etcd://HOST:PORT,HOST:PORT,.... "
        f"{VARIABLE} in the environment says the same, and is not printed with Megatron's arguments.",
    )
    group.add_argument(
        "--recycle-restarts",
        type=_times,
        default=RESTARTS,
        help="How often within an hour the server of a crashed worker is started again.",
    )
    group.add_argument(
        RECORD,
        metavar="FOLDER",
        help="Where servers write what they do, for recycle watch and show; on several hosts they share it.",
    )
    group.add_argument(
        KEEP,
        default=OFF,
        metavar="copies=N|parity=K+M|off",
        help="Each iteration's state in the memory of N hosts, so that it outlives all servers of a stage; or in "
        "pieces on K+M hosts, of which any K are enough.",
    )
    group.add_argument(
        RESUME,
        action="store_true",
        help=f"Where all servers died: go on from the state in the memory of hosts, with the same {RECORD}.",
    )
    group.add_argument(
        TOKEN,
        metavar="FILE",
        help="With the secret of a run on several hosts, the same on all; "
        f"{TOKEN_FILE} in the environment names it as well, or {TOKEN_VARIABLE} is the secret.",
    )
    group.add_argument(
        TRUST,
        action="store_true",
        help="Several hosts without a secret: what reaches one of them can read the state, write files, end the run.",
    )
    return parser


def _times(text: str) -> int:
    try:
        return parse_whole(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: give a number from 0, in the digits 0 to 9") from error


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """Within the block, what is wrong is said of an option."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{option} {error}") from error


def read_flags(values: argparse.Namespace) -> Flags:
    """The flags among parsed arguments.

    Raises:
        UserError: one has no usable value.
    """
    with _naming(f"{DEAD}:"):
        dead = tuple(Server.parse(name.strip()) for name in values.recycle_dead.split(",") if name.strip())
    with _naming("--recycle-budget:"):
        budget = parse_duration(values.recycle_budget)
    with _naming(KEEP):
        redundancy = Redundancy.parse(values.recycle_keep_in_memory)
    paths = values.recycle_catalogue, values.recycle_record, values.recycle_token_file
    catalogue, record, token_file = (None if each is None else Path(each) for each in paths)
    on = getattr(values, SCHEDULE) == RECYCLE
    store = values.recycle_store or os.environ.get(VARIABLE)
    if store:
        EtcdCluster.parse(store)
    resumes, restarts, trusts = values.recycle_resume, values.recycle_restarts, values.recycle_trust_network
    if resumes and (redundancy is None or record is None):
        raise UserError(f"{RESUME}: it takes the {KEEP} and the {RECORD} of the start that it goes on from")
    own_steps = values.recycle_stagger, values.recycle_exact
    return Flags(
        on, catalogue, dead, budget, *own_steps, store, restarts, record, redundancy, resumes, token_file, trusts
    )


def find_flags(arguments: Sequence[str]) -> tuple[Flags, list[str]]:
    """The flags on a command line, and what else is on it.

    Raises:
        UserError: one has no usable value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    try:
        values, rest = add_flags(parser).parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    return read_flags(values), rest
