"""What recycle adds to the command line of a Megatron training script."""

import argparse
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from recycle.control.store.etcd_cluster import VARIABLE, EtcdCluster
from recycle.digits import parse_whole
from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.job import Server
from recycle.plan.catalogue import Catalogue
from recycle.runtime.launch.meet.secret import TOKEN as TOKEN_VARIABLE
from recycle.runtime.launch.meet.secret import TOKEN_FILE
from recycle.runtime.launch.process.restarts import RESTARTS
from recycle.state.redundancy import OFF, Redundancy

STOCK, RECYCLE = "stock", "recycle"
KEEP, RESUME, RECORD, DEAD = "--recycle-keep-in-memory", "--recycle-resume", "--recycle-record", "--recycle-dead"
STORE, CATALOGUE = "--recycle-store", "--recycle-catalogue"
TOKEN, TRUST = "--recycle-token-file", "--recycle-trust-network"

REFUSED = UserError.exit_status
"""The exit status where what was asked for cannot be done."""


class Flags(NamedTuple):
    """The values of recycle's flags, by their names on the command line.

    Attributes:
        pipeline_schedule: recycle's, where pipelines follow a plan; otherwise everything is Megatron's own.
        catalogue: plans made ahead of time; without one, a plan is made when training starts.
        dead: servers that leave before the first iteration; their micro-batches go to their peers.
        budget: seconds for making a plan.
        stagger: whether each stage steps on its own; otherwise Megatron's optimizer steps all of them together.
        exact: whether sums of gradients have the same bits whichever servers live.
        store: where servers agree on which servers live in etcd; None for the store with which they were started.
        restarts: how often within an hour the server of a crashed worker is started again.
        record: the folder in which the run is recorded; None if it is not.
        keep_in_memory: how the state is kept in the memory of hosts; None if it is not.
        resume: whether training goes on from what is left there of a start whose servers are all dead.
        token_file: with the secret that all hosts share; None where the environment or the host has it.
        trust_network: whether several hosts may do without one.
    """

    pipeline_schedule: str
    catalogue: Path | None
    dead: tuple[Server, ...]
    budget: float
    stagger: bool
    exact: bool
    store: str | None
    restarts: int
    record: Path | None
    keep_in_memory: Redundancy | None
    resume: bool
    token_file: Path | None
    trust_network: bool

    @property
    def on(self) -> bool:
        """Whether pipelines follow a plan."""
        return self.pipeline_schedule == RECYCLE

    def read_catalogue(self) -> Catalogue | None:
        """The plans made ahead of time.

        Raises:
            UserError: they cannot be read.
        """
        return None if self.catalogue is None else Catalogue(self.catalogue)

    @property
    def owns_steps(self) -> bool:
        """Whether stages are stepped by recycle, and not by Megatron's training code."""
        return self.stagger or self.exact


def add_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add recycle's flags to a parser."""
    add = parser.add_argument
    add(
        "--pipeline-schedule",
        choices=[STOCK, RECYCLE],
        default=STOCK,
        help="stock: Megatron's own schedules. recycle: pipelines follow a plan that routes around dead servers.",
    )
    add(CATALOGUE, type=Path, help="Plans made with recycle catalogue.")
    add(
        DEAD,
        type=_typed(_servers),
        default=(),
        help="Servers that leave before the first iteration; their peers do their work: W1_2,W0_3.",
    )
    add(
        "--recycle-budget",
        type=_typed(parse_duration),
        default="5s",
        help="Time for making a plan: 500ms, 5s, 1m.",
    )
    add(
        "--recycle-stagger",
        action="store_true",
        help="Each stage steps on its own, without waiting for the norm of the others.",
    )
    add(
        "--recycle-exact",
        action="store_true",
        help="Failures change no bit of what is trained; costs time and memory.",
    )
    add(
        STORE,
        help="Where servers agree on the live ones, so that any host may be lost: etcd://HOST:PORT,HOST:PORT,.... "
        f"{VARIABLE} in the environment says the same, and no list of processes shows it.",
    )
    add(
        "--recycle-restarts",
        type=_typed(parse_whole),
        default=RESTARTS,
        help="How often within an hour the server of a crashed worker is started again.",
    )
    add(
        RECORD,
        type=Path,
        metavar="FOLDER",
        help="Where servers write what they do, for recycle watch and show; on several hosts they share it.",
    )
    add(
        KEEP,
        type=_typed(Redundancy.parse),
        default=OFF,
        metavar="copies=N|parity=K+M|off",
        help="Each iteration's state in the memory of N hosts, so that it outlives all servers of a stage; or in "
        "pieces on K+M hosts, of which any K are enough.",
    )
    add(
        RESUME,
        action="store_true",
        help=f"Where all servers died: go on from the state in the memory of hosts, with the same {RECORD}.",
    )
    add(
        TOKEN,
        type=Path,
        metavar="FILE",
        help="With the secret of a run on several hosts, the same on all; "
        f"{TOKEN_FILE} in the environment names it as well, or {TOKEN_VARIABLE} is the secret.",
    )
    add(
        TRUST,
        action="store_true",
        help="Several hosts without a secret: what reaches one of them can read the state, run code, end the run.",
    )
    return parser


def _typed(parse: Callable[[str], object]) -> Callable[[str], object]:
    """A reader of values, whose words about a wrong one argparse says of the option."""

    def typed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return typed


def _servers(text: str) -> tuple[Server, ...]:
    return tuple(Server.parse(name.strip()) for name in text.split(",") if name.strip())


def find_flags(arguments: Sequence[str]) -> tuple[Flags, list[str]]:
    """The flags on a command line, and what else is on it.

    Raises:
        UserError: one has no usable value, or two.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    values, rest = parse_known(add_flags(parser), arguments)
    given = Counter(word.partition("=")[0] for word in arguments)
    for name, value in vars(values).items():
        option = f"--{name.replace('_', '-')}"
        if given[option] > 1 and not isinstance(value, bool):
            raise UserError(f"{option}: it was given {given[option]} times; give it once")
    flags = Flags(**{name.removeprefix("recycle_"): value for name, value in vars(values).items()})
    flags = flags._replace(store=flags.store or os.environ.get(VARIABLE))
    if flags.store:
        EtcdCluster.parse(flags.store)
    if flags.resume and (flags.keep_in_memory is None or flags.record is None):
        raise UserError(f"{RESUME}: it takes the {KEEP} and the {RECORD} of the start that it goes on from")
    return flags, rest


def parse_known(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The values of a parser's options on a command line, and what else is on it.

    Raises:
        UserError: one has no usable value.
    """
    try:
        return parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UserError(f"{error.argument_name}: {error.message}") from error
