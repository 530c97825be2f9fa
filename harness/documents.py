"""The commands that README and the documents show."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from harness.paths import ROOT
from recycle.cli.verbs import VERBS

DOCUMENTS = [
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
PROGRAM = re.compile(r"(?:\w+=\S+ |(?:torchrun|srun)\b.*? )*(?:\$\(which )?(recycle\)? \S.*|python \S.*)")
"""A command of ours, behind variables and launchers."""
REMARK = re.compile(r"\s{2,}|\s#")
"""What stands two spaces to the right, or behind a #, says what the command does."""


class Command(NamedTuple):
    """A command of a document: the words of ``recycle`` or ``python``, and those before them."""

    document: str
    text: str
    words: tuple[str, ...]


def commands_of(path: Path) -> list[Command]:
    """Those of ``recycle`` and ``python`` in a document."""
    text = path.read_text()
    lines: list[str] = []
    for block in FENCE.finditer(text):
        if block["language"] in ("", "sh"):
            lines += block["body"].replace("\\\n", " ").splitlines()
    lines += [" ".join(each.split()) for each in SPAN.findall(FENCE.sub("", text))]
    found = []
    for line in lines:
        match = PROGRAM.match(line)
        if match is None:
            continue
        words = shlex.split(REMARK.split(match[1].replace("recycle)", "recycle"))[0])
        program = "." if len(words) < 2 else words[1]
        if (words[0] == "recycle" and program in VERBS and len(words) > 2) or words[0] == "python":
            found.append(Command(path.name, line.strip(), tuple(words)))
    return found


COMMANDS = [command for path in sorted(DOCUMENTS) for command in commands_of(path)]


def shell_lines() -> list[str]:
    """The other lines of the documents' shell blocks, without their remarks."""
    blocks = [block for path in DOCUMENTS for block in FENCE.finditer(path.read_text()) if block["language"] == "sh"]
    lines = [line for block in blocks for line in block["body"].replace("\\\n", " ").splitlines()]
    return sorted({REMARK.split(line)[0] for line in lines if line.strip() and not PROGRAM.match(line)})
