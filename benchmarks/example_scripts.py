"""What the doctor says of the training scripts in Megatron-LM's ``examples/`` that say how many ranks they start.

    python -m benchmarks.example_scripts ~/Megatron-LM

Each shell script is run in an empty folder, where what starts a job (torchrun, python) only writes its
words down. Its arguments, in whose place users put paths and numbers, are 64 here.
Where a job needs more ranks than the script starts, the doctor is asked about two pipelines.
"""

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from recycle.cli.diagnosis import Diagnosis, diagnose, split_at_script
from recycle.errors import UserError
from recycle.megatron.flag.command.command_line import read_command_line
from recycle.megatron.flag.command.megatron_options import choose_release

LAUNCHERS = ("torchrun", "python", "python3")
TOOLS = ("dirname", "mkdir", "date", "basename", "readlink", "cat", "seq", "which")
"""What scripts call before they start a job."""

STAND_IN = '#!/bin/sh\nprintf \'%s\\n\' "${0##*/}" "$@" \'\' >> "$STARTED"\n'
GIVEN = "64"
NAMES = ("WORKSPACE", "LOAD_NAME", "LOAD_ITER")
"""Variables without which a script does not begin."""

SCRIPT = re.compile(r"(?:\S*/)?(?:pretrain\w*|train|finetune\w*)\.py")
NEEDED = re.compile(r"ranks are no multiple of (\d+)")
MORE = 1024
"""Ranks of which enough are taken to see what else there is to say."""


class ExampleJob(NamedTuple):
    """What a script starts.

    Attributes:
        name: of the script.
        words: of the command line, from the launcher on.
    """

    name: str
    words: tuple[str, ...]


def example_jobs(tree: Path) -> Iterator[ExampleJob]:
    """The training jobs with a number of ranks that the scripts of a source tree start."""
    for path in sorted((tree / "examples").rglob("*.sh")):
        for words in started_by(path, tree):
            places = [place for place, word in enumerate(words) if SCRIPT.fullmatch(word)]
            if places and any("nproc" in word for word in words[: places[0]]):
                yield ExampleJob(str(path.relative_to(tree / "examples")), words)


def started_by(path: Path, tree: Path) -> list[tuple[str, ...]]:
    """The command lines that a script would start."""
    text = path.read_text(errors="replace")
    if not any(launcher in text for launcher in LAUNCHERS) or SCRIPT.search(text) is None:
        return []
    with tempfile.TemporaryDirectory() as temporary:
        folder, programs = Path(temporary) / "work", Path(temporary) / "programs"
        programs.mkdir()
        folder.mkdir()
        for name in LAUNCHERS:
            (programs / name).write_text(STAND_IN)
            (programs / name).chmod(0o755)
        for name in TOOLS:
            (programs / name).symlink_to(f"/usr/bin/{name}")
        # Some look whether they are started where the script lies.
        for script in tree.glob("pretrain_*.py"):
            (folder / script.name).touch()
        words = Path(temporary) / "words"
        variables = {"PATH": str(programs), "STARTED": str(words), "HOME": str(folder), "RANK": "0"}
        subprocess.run(
            ["/bin/bash", str(path), *[GIVEN] * 8],
            env=variables | dict.fromkeys(NAMES, GIVEN),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=False,
        )
        said = words.read_text() if words.exists() else ""
    return [tuple(command.splitlines()) for command in said.split("\n\n") if command.strip()]


def judged(job: ExampleJob, ranks: int | None, release: str, tree: Path) -> Diagnosis | str:
    """What the doctor says; why it cannot say anything.

    Args:
        job: which.
        ranks: how many there are; None for what the script says.
        release: of Megatron.
        tree: in whose root scripts are started.
    """
    launcher, (script, *_) = split_at_script(job.words)
    try:
        return diagnose(read_command_line(job.words, ranks), None, release, tree / script, launcher)
    except UserError as error:
        return str(error)


def cells(job: ExampleJob, release: str, tree: Path) -> list[str]:
    """A row of the table."""
    asked = judged(job, None, release, tree)
    remedies, ranks = [], ""
    if isinstance(asked, str):
        needed = NEEDED.search(asked)
        more = judged(job, 2 * int(needed[1]) if needed else MORE, release, tree)
        remedies.append(f"{2 * int(needed[1])} ranks for two pipelines" if needed else asked)
    else:
        ranks, more = str(asked.line.ranks), asked
        if asked.unprotected:
            remedies.append(f"{2 * asked.line.ranks} ranks: {asked.unprotected}")
    if isinstance(more, Diagnosis):
        ranks = ranks or f"{more.line.ranks} for the script's"
        remedies += [f"`{more.line.option(each.name)}`: {each.advice.remedy}" for each in more.refused]
        remedies += [f"`{each.word}`: {each.remedy}" for each in more.unread]
    elif more not in remedies:
        remedies.append(more)
    runs = isinstance(asked, Diagnosis) and asked.runs
    survives = isinstance(asked, Diagnosis) and asked.survives_process
    return [job.name, ranks, "yes" if runs else "no", "yes" if survives else "no", "; ".join(remedies)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="a source tree of Megatron-LM")
    parser.add_argument("--release", help="whose options count; default: the installed one's")
    options = parser.parse_args()
    release, tree = choose_release(options.release), options.tree.resolve()
    began = time.monotonic()
    print("| script | ranks | runs | survives the death of a process | what to change |")
    print("| --- | --- | --- | --- | --- |")
    rows = [cells(job, release, tree) for job in example_jobs(tree)]
    assert rows, f"{tree}: no examples here; give a source tree of Megatron-LM"
    for row in rows:
        print(f"| {' | '.join(row)} |")
    counts = [sum(row[place] == "yes" for row in rows) for place in (2, 3)]
    print(f"{len(rows)} jobs read, {counts[0]} run and {counts[1]} survive; {time.monotonic() - began:.1f} s")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
