"""What the doctor says of the configurations that Megatron-LM tests itself with: how many run, and what is in the way.

    python -m benchmarks.configurations ~/Megatron-LM
    python -m benchmarks.configurations ~/Megatron-LM --list

Read are the pretraining jobs of GPT models and mixtures of experts below ``tests/functional_tests/test_cases``, on 8
ranks or as many as they need. All of them name nccl, which is counted as if it were there.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from recycle.cli.diagnosis import Diagnosis, diagnose
from recycle.errors import UserError
from recycle.megatron.flag.command.command_line import read_command_line
from recycle.megatron.flag.command.option_table import choose_release

FAMILIES = ("gpt", "moe")
RANKS = 8
OPTIONS_OF_SIZE = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size")


class Configuration(NamedTuple):
    """One of the jobs.

    Attributes:
        name: its folder.
        words: of its command line.
        ranks: that it needs.
    """

    name: str
    words: tuple[str, ...]
    ranks: int


def configurations(tree: Path) -> Iterator[Configuration]:
    """Those of a source tree of Megatron-LM."""
    for family in FAMILIES:
        for path in sorted((tree / "tests" / "functional_tests" / "test_cases" / family).glob("*/model_config.yaml")):
            arguments = yaml.safe_load(path.read_text()).get("MODEL_ARGS")
            if isinstance(arguments, dict) and not arguments.keys().isdisjoint(("--train-iters", "--train-samples")):
                words = tuple(word for option, value in arguments.items() for word in spelt(option, value))
                yield Configuration(path.parent.name, words, ranks_of(arguments))


def spelt(option: str, value: Any) -> list[str]:
    """An option as it is typed."""
    if value is True:
        return [option]
    values = value if isinstance(value, list) else str(value).strip("[]").replace(",", " ").split()
    return [] if value is False else [option, *map(str, values)]


def ranks_of(arguments: dict[str, Any]) -> int:
    """How many ranks a job is given: 8, or the next multiple of what one pipeline needs."""
    needed = 1
    for option in OPTIONS_OF_SIZE:
        needed *= int(arguments.get(option, 1))
    return -(-RANKS // needed) * needed


def diagnosed(each: Configuration, release: str) -> Diagnosis | str:
    """What the doctor says of a job; why it cannot be read."""
    try:
        return diagnose(read_command_line(("pretrain_gpt.py", *each.words), each.ranks), None, release)
    except UserError as error:
        return str(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="a source tree of Megatron-LM")
    parser.add_argument("--release", help="whose options count; default: the installed one's")
    parser.add_argument("--list", action="store_true", help="a line for each configuration")
    options = parser.parse_args()
    release = choose_release(options.release)
    ways: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for each in configurations(options.tree):
        found = diagnosed(each, release)
        counts["configurations"] += 1
        if isinstance(found, str):
            counts["unreadable"] += 1
            reasons = {found.split(":")[0]}
        else:
            reasons = {found.line.option(refusal.name) for refusal in found.refused}
            reasons |= {each.word for each in found.unread}
            counts["runs"] += found.runs
            counts["survives_process"] += found.survives_process
            counts["split, of those that run"] += found.runs and not found.fused
            if found.runs and found.unprotected:
                counts["unprotected: " + found.unprotected] += 1
        ways.update(reasons)
        if len(reasons) == 1:
            alone.update(reasons)
        if options.list:
            print(f"{each.name:70} {each.ranks:3} ranks  {', '.join(sorted(reasons)) or 'runs'}")
    assert counts["configurations"], f"{options.tree}: no configurations here; give a source tree of Megatron-LM"
    for name, count in counts.items():
        print(f"{count:4}  {name}")
    print("\nin the way                                            of  alone")
    for name, count in ways.most_common():
        print(f"{name:50} {count:5} {alone[name]:6}")


if __name__ == "__main__":
    main()
