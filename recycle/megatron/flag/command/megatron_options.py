"""Megatron's options, release by release: which words of a command line nobody reads, and which change no result."""

import argparse
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from recycle.errors import UserError
from recycle.megatron.flag.command.flags import parse_known

LEFT_OUT = {
    # A rank that dies while training goes on would take its part of the checkpoint along.
    "--async-save": "checkpoints are written before training goes on",
    "--overlap-param-gather-with-optimizer-step": "parameters are given to peers when all are stepped",
    "--defer-embedding-wgrad-compute": "a plan says when weight gradients are computed",
    "--overlap-moe-expert-parallel-comm": "a plan says in which order micro-batches are computed",
    "--delay-wgrad-compute": "a plan says when weight gradients are computed",
    "--ep-overlap-early-attn-memory-release": "it is a part of --overlap-moe-expert-parallel-comm",
    "--num-distributed-optimizer-instances": "peers hold each shard twice as it is",
    "--ckpt-assume-constant-structure": "which rank writes which part of a checkpoint changes with failures",
    "--distributed-timeout-seconds-after-init": "a server that comes back would wait for all others to set it",
}
"""Why, by option."""

WITH_VALUE = ("--num-distributed-optimizer-instances", "--distributed-timeout-seconds-after-init")
"""Those that take a value; all others are switches."""

TABLE = "megatron_options.txt"
KINDS: dict[str, type] = {"int": int, "float": float, "str": str}

VIRTUAL = (
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
    "pipeline_model_parallel_layout",
)
"""The settings that divide the layers of a stage among virtual ones."""

PATTERNS = ("hybrid_layer_pattern", "hybrid_override_pattern")
"""The settings that say what each layer of a hybrid model is, and where."""

DECIDED_BY = {
    "virtual_pipeline_model_parallel_size": (*VIRTUAL, *PATTERNS),
    "num_layers": ("num_layers", *PATTERNS),
    "mtp_num_layers": ("mtp_num_layers", *PATTERNS),
}
"""Settings that Megatron finds from others."""


class Option(NamedTuple):
    """An option of Megatron's.

    Attributes:
        values: how many it takes: a number, ``+`` for at least one, ``*`` for any number, ``?`` for one or none.
        setting: what Megatron's arguments call what it sets.
        kind: ``int``, ``float`` or ``str``; of a switch what it sets, ``true`` or ``false``.
        default: of the setting.
        releases: that know it, the oldest first.
    """

    values: str
    setting: str
    kind: str
    default: Any
    releases: tuple[str, ...]


class Unread(NamedTuple):
    """A word of a command line that nobody reads.

    Attributes:
        word: as it was typed.
        remedy: what was meant, or what to do.
    """

    word: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.word}: {self.remedy}"


@cache
def known_options() -> dict[str, Option]:
    """Every option of the releases that were looked at, by its name."""
    rows = (files(__package__) / TABLE).read_text().splitlines()
    return {
        name: Option(values, setting, kind, msgspec.json.decode(default), tuple(releases))
        for name, values, setting, kind, default, *releases in (row.split() for row in rows if not row.startswith("#"))
    }


def options_of(setting: str) -> list[str]:
    """The options that decide a setting, the one of its name first; none if Megatron's command line cannot set it."""
    if setting in DECIDED_BY:
        return [option_named(each) for each in DECIDED_BY[setting]]
    found = [name for name, option in known_options().items() if option.setting == setting]
    return sorted(found, key=lambda name: name != option_named(setting))


def option_named(setting: str) -> str:
    """What the option of a setting is called, of most."""
    return f"--{setting.replace('_', '-')}"


def megatron_parser() -> argparse.ArgumentParser:
    """A parser of Megatron's options, of all releases that were looked at."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, option in known_options().items():
        if option.values == "0":
            parser.add_argument(name, dest=option.setting, action=f"store_{option.kind}", default=option.default)
            continue
        values = int(option.values) if option.values.isdecimal() else option.values
        parser.add_argument(
            name,
            dest=option.setting,
            nargs=None if values == 1 else values,
            type=KINDS[option.kind],
            default=option.default,
        )
    return parser


def known_releases() -> list[str]:
    """The releases that were looked at, the oldest first."""
    found = {release for option in known_options().values() for release in option.releases}
    return sorted(found, key=lambda release: [int(part) for part in release.split(".")])


def choose_release(asked: str | None) -> str:
    """The release whose options count: the one that was asked for, that is installed, or the newest that is known.

    Raises:
        UserError: the one that was asked for is not known.
    """
    known = known_releases()
    if asked is not None:
        if asked not in known:
            raise UserError(f"Megatron {asked}: the options of {', '.join(known)} are known; give one of these")
        return asked
    try:
        installed = version("megatron-core")
    except PackageNotFoundError:
        return known[-1]
    return installed if installed in known else known[-1]


def find_unread(words: Sequence[str], release: str) -> Iterator[Unread]:
    """What of a script's arguments nobody reads, because Megatron does not know it.

    Args:
        words: the script's arguments, without recycle's.
        release: of Megatron.
    """
    options = known_options()
    expected: float = 0
    for word in words:
        name, _, value = word.partition("=")
        if not word.startswith("--"):
            if expected <= 0:
                yield Unread(word, "no option before it takes this value")
            expected -= 1
            continue
        option = options.get(name)
        if option is None or release not in option.releases:
            yield Unread(name, _remedy(name, option, release))
            # Whatever it was meant to be, what follows belongs to it.
            expected = float("inf")
        else:
            expected = 0 if value else float(option.values) if option.values.isdecimal() else float("inf")


def _remedy(name: str, option: Option | None, release: str) -> str:
    if option is not None:
        return f"Megatron {release} does not know it, and {', '.join(option.releases)} does"
    known = [each for each, found in known_options().items() if release in found.releases]
    close = get_close_matches(name, known, n=1, cutoff=0.8)
    return f"did you mean {close[0]}?" if close else f"Megatron {release} does not know it, unless the script adds it"


def leave_out(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line without them, and those that were on it.

    Args:
        words: of the script and its arguments.

    Raises:
        UserError: one lacks its value, or a switch has one.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in LEFT_OUT:
        action = "store" if option in WITH_VALUE else "store_true"
        parser.add_argument(option, dest=option, action=action, default=argparse.SUPPRESS)
    given, left = parse_known(parser, words)
    return left, [option for option in LEFT_OUT if option in given]
