"""Enter the options of a release of Megatron into the doctor's table.

    PYTHONPATH=<a tree of Megatron-LM> python scripts/list_megatron_options.py 0.17.1

The tree must be importable; what is entered are names, how many values they take, and the release, nothing else. An
option that the parser takes and nobody reads is not entered.
"""

import argparse
import sys
from importlib.resources import files
from pathlib import Path

from recycle.files import write_whole
from recycle.megatron.flag.command.option_table import TABLE, Option, known_options
from recycle.megatron.shared.missing import make_importable

RAMP_UP = "RampupBatchsizeNumMicroBatchesCalculator"
"""What makes batches grow by --rampup-batch-size; releases without it still parse that."""


def main() -> None:
    (release,) = sys.argv[1:]
    make_importable()
    from megatron.training.arguments import add_megatron_arguments

    rows = {
        name: Option(option.values, tuple(each for each in option.releases if each != release))
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
                rows[name] = Option(values, tuple(order))
    head = [
        "# The options of Megatron's training scripts: name, how many values (+ at least one, * any number), releases.",
        "# Made by scripts/list_megatron_options.py from Megatron's own parser.",
    ]
    lines = [f"{name} {option.values} {' '.join(option.releases)}" for name, option in sorted(rows.items())]
    path = Path(str(files("recycle.megatron.flag.command") / TABLE))
    write_whole(path, "\n".join([*head, *(line for line in lines if len(line.split()) > 2)]).encode() + b"\n")
    print(f"{path}: {len(lines)} options")


if __name__ == "__main__":
    main()
