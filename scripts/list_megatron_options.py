"""Enter the options of a release of Megatron into the doctor's table.

    PYTHONPATH=<a tree of Megatron-LM> python scripts/list_megatron_options.py 0.17.1

The tree must be importable; what is entered are names, values, settings, defaults and the release, nothing else. An
option that the parser takes and nobody reads is not entered.
"""

import argparse
import sys
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from recycle.files import write_whole
from recycle.megatron.flag.command.megatron_options import TABLE, Option, known_options
from recycle.megatron.shared.missing import make_importable

RAMP_UP = "RampupBatchsizeNumMicroBatchesCalculator"
"""What makes batches grow by --rampup-batch-size; releases without it still parse that."""


def kind_of(action: argparse.Action, name: str) -> str:
    """What the values of an option are, or what a switch sets."""
    if action.nargs == 0:
        turned_off = isinstance(action, argparse.BooleanOptionalAction) and name.startswith("--no-")
        return "false" if turned_off or action.const is False else "true"
    return {int: "int", float: "float"}.get(action.type, "str")  # type: ignore[call-overload, no-any-return]


def plain(default: Any) -> Any:
    """A default as the command line names it."""
    return default.name if isinstance(default, Enum) else default


def row(name: str, option: Option) -> str:
    """An option's line of the table."""
    default = msgspec.json.encode(option.default).decode()
    return " ".join([name, option.values, option.setting, option.kind, default, *option.releases])


def main() -> None:
    (release,) = sys.argv[1:]
    make_importable()
    from megatron.training.arguments import add_megatron_arguments

    rows = {
        name: option._replace(releases=tuple(each for each in option.releases if each != release))
        for name, option in known_options().items()
    }
    from megatron.core import num_microbatches_calculator

    unread = set() if hasattr(num_microbatches_calculator, RAMP_UP) else {"rampup_batch_size"}
    for action in add_megatron_arguments(argparse.ArgumentParser())._actions:  # noqa: SLF001 - argparse lists them nowhere else
        for name in action.option_strings:
            if name.startswith("--") and name != "--help" and action.dest not in unread:
                values = "1" if action.nargs is None else str(action.nargs)
                releases = {*(rows[name].releases if name in rows else ()), release}
                order = sorted(releases, key=lambda each: [int(part) for part in each.split(".")])
                rows[name] = Option(values, action.dest, kind_of(action, name), plain(action.default), tuple(order))
    head = [
        "# The options of Megatron's training scripts: name, how many values (+ at least one, * any number), setting,",
        "# what its values are or what a switch sets, default as JSON, releases.",
        "# Made by scripts/list_megatron_options.py from Megatron's own parser.",
    ]
    lines = [row(name, option) for name, option in sorted(rows.items()) if option.releases]
    path = Path(str(files("recycle.megatron.flag.command") / TABLE))
    write_whole(path, "\n".join([*head, *lines]).encode() + b"\n")
    print(f"{path}: {len(lines)} options")


if __name__ == "__main__":
    main()
