"""What pages show to be run, or to be put into a file: blocks behind a comment that says so, which readers do not see.

``<!-- run -->`` is run as it stands, in a folder of the page; ``<!-- run: long -->`` as well, and takes long.
``<!-- run: background -->`` goes on until the page is through, and ``<!-- run: after "text" -->`` waits until that has
printed the text. ``<!-- file: job.toml -->`` is the content of a file, and ``<!-- output -->`` what the block before
prints, on 100 columns.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from harness.paths import ROOT, python_path
from harness.started import Started

MARKED = re.compile(
    r"^<!-- (?P<mark>run|file|output)(?:: (?P<how>[^>]*?))? -->\n```(?P<language>\w*)\n(?P<body>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
PAGES = sorted(path for folder in ("tutorials", "howto", "reference") for path in (ROOT / "docs" / folder).glob("*.md"))
AT_WORK = re.compile(r"^[a-z ]+ after [0-9.]+ s\n", re.MULTILINE)
"""That a command is at work, which it says where it takes more than some seconds."""

MINUTES = 10


class Block(NamedTuple):
    """A block of a page.

    Attributes:
        mark: ``run``, ``file`` or ``output``.
        how: what else the mark says; empty if nothing.
        language: of the block.
        body: its lines.
    """

    mark: str
    how: str
    language: str
    body: str

    @property
    def is_long(self) -> bool:
        """Whether it takes more than seconds, or needs what does."""
        return self.mark == "run" and self.how != ""


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that are marked, in their order."""
    return [Block(*(found[name] or "" for name in Block._fields)) for found in MARKED.finditer(page.read_text())]


def run_page(page: Path, folder: Path, *, long: bool) -> None:
    """Run a page's blocks in a folder.

    Args:
        page: which.
        folder: where its files are.
        long: also those that take long.

    Raises:
        AssertionError: a command failed, a text did not come, or another output than the page has.
    """
    background: list[Started] = []
    printed: str | None = None
    try:
        for block in blocks_of(page):
            if block.mark == "file":
                (folder / block.how).write_text(block.body)
            elif block.mark == "output":
                assert printed in (None, block.body), f"the page has\n{block.body}and it is\n{printed}"
            elif block.how == "background":
                background += [_started(block.body)] if long else []
            elif long or not block.is_long:
                if block.how.startswith("after"):
                    background[-1].wait_for(block.how.split('"')[1], 60 * MINUTES)
                printed = _run(block, folder)
            else:
                printed = None
    finally:
        for each in background:
            _end(each)


def _run(block: Block, folder: Path) -> str:
    """Run a block, and give what it prints."""
    words = [sys.executable, "-c", block.body] if block.language == "python" else ["bash", "-ec", block.body]
    done = subprocess.run(
        words, cwd=folder, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60 * MINUTES
    )
    assert done.returncode == 0, f"{block.body}{done.stdout.decode()[-3000:]}"
    return AT_WORK.sub("", done.stdout.decode())


def _started(body: str) -> Started:
    """What goes on beside the rest of the page; it is in the folder that is the current one."""
    return Started(["bash", "-c", f"exec {body}"], variables=_environment())


def _end(started: Started) -> None:
    """Ask it to end, so that nothing of it is left; end it however far it is where it does not."""
    started.process.terminate()
    try:
        started.ended(60)
    except subprocess.TimeoutExpired:
        started.kill()


def _environment() -> dict[str, str]:
    """That of a reader who has installed ``recycle`` where Python is."""
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return os.environ | {"PATH": os.pathsep.join(places), "PYTHONPATH": python_path(), "COLUMNS": "100"}
