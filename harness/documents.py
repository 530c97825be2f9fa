"""The commands that README and the documents show."""

import re
import shlex
from collections.abc import Mapping
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
MARK = re.compile(r"<!-- run[^>]*-->\n\Z")
"""Stands before a block that is run as it stands."""
SPAN = re.compile(r"`([^`]+)`")
PROGRAM = re.compile(r"(?:\w+=\S+ |(?:torchrun|srun)\b.*? )*(?:\$\(which )?(recycle\)? \S.*|python \S.*)")
"""A command of ours, behind variables and launchers."""
REMARK = re.compile(r"\s{2,}|\s#")
"""What stands two spaces to the right, or behind a #, says what the command does."""


class Command(NamedTuple):
    """A command of a document: the words of ``recycle`` or ``python``, and those before them.

    Attributes:
        document: the file's name.
        text: the line.
        words: of it.
        marked: whether it stands in a block that is run as it stands (``runnable_pages``).
    """

    document: str
    text: str
    words: tuple[str, ...]
    marked: bool


def commands_of(path: Path) -> list[Command]:
    """Those of ``recycle`` and ``python`` in a document."""
    text = path.read_text()
    lines: list[tuple[str, bool]] = []
    for block in FENCE.finditer(text):
        if block["language"] in ("", "sh"):
            marked = bool(MARK.search(text, 0, block.start()))
            lines += [(line, marked) for line in block["body"].replace("\\\n", " ").splitlines()]
    lines += [(" ".join(each.split()), False) for each in SPAN.findall(FENCE.sub("", text))]
    found = []
    for line, marked in lines:
        match = PROGRAM.match(line)
        if match is None:
            continue
        words = shlex.split(REMARK.split(match[1].replace("recycle)", "recycle"))[0])
        program = "." if len(words) < 2 else words[1]
        if (words[0] == "recycle" and program in VERBS and len(words) > 2) or words[0] == "python":
            found.append(Command(path.name, line.strip(), tuple(words), marked))
    return found


COMMANDS = [command for path in sorted(DOCUMENTS) for command in commands_of(path)]


def shell_lines() -> list[str]:
    """The other lines of the documents' shell blocks, without their remarks."""
    texts = [path.read_text() for path in DOCUMENTS]
    blocks = [
        block
        for text in texts
        for block in FENCE.finditer(text)
        if block["language"] == "sh" and not MARK.search(text, 0, block.start())
    ]
    lines = [line for block in blocks for line in block["body"].replace("\\\n", " ").splitlines()]
    return sorted({REMARK.split(line)[0] for line in lines if line.strip() and not PROGRAM.match(line)})


def block_with(page: Path, text: str) -> str:
    """The block of a page that has a text in it; there must be one."""
    (found,) = (block["body"] for block in FENCE.finditer(page.read_text()) if text in block["body"])
    return found


def changed(text: str, changes: Mapping[str, str]) -> str:
    """A block with what is other here; each change must be one."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text
