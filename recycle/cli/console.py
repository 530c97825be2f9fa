"""The console: the only place that prints. Reports go to standard output, progress and errors to standard error."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import click
import msgspec

from recycle.files import STANDARD
from recycle.wording import printable_lines

if TYPE_CHECKING:
    from rich.console import Console

PACE = 10.0
"""Seconds between two lines of progress where they stay, as in a file."""

_NO_TEXT = re.compile("[\ud800-\udfff]")
"""What Python puts for bytes that are no UTF-8."""


class Show(Protocol):
    """Replaces the text of a line of progress."""

    def __call__(self, text: str, done: int = 0, total: int | None = None) -> None: ...  # noqa: D102 - as above


def report_console(output: Path | None) -> "Console":
    """Where to say what was done: not on standard output, if that is where the output goes."""
    return make_console(error=output == STANDARD)


def make_console(*, error: bool = False, color: bool = True) -> "Console":
    """A rich console on standard output, or on standard error, which may be full or closed."""
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        """A console that a name out of a file cannot steer, whatever it is printed in."""

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            seen = (each if each.control else each._replace(text=printable_lines(each.text)) for each in buffer)
            return super()._render_buffer(seen)

    file = cast("IO[str]", _Spared(sys.stderr)) if error else None
    # Without a word on it, NO_COLOR in the environment counts.
    no_color = None if color else True
    return PlainConsole(file=file, no_color=no_color, markup=False, emoji=False, highlight=False, soft_wrap=True)


class _Spared:
    """A stream without which its writer goes on: what cannot be written is left out.

    Args:
        stream: where to.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_json(value: Any) -> None:
    """One JSON document on standard output, in ASCII."""
    content = msgspec.json.encode(_encodable(msgspec.to_builtins(value)))
    click.echo(json.dumps(msgspec.json.decode(content), indent=2))


def _encodable(value: Any) -> Any:
    """The same with texts that UTF-8 has: the bytes of a file's name, or of a word, may be no text."""
    match value:
        case str():
            return _NO_TEXT.sub("\ufffd", value)
        case dict():
            return {_encodable(key): _encodable(each) for key, each in value.items()}
        case list() | tuple():
            return [*map(_encodable, value)]
        case _:
            return value


@contextmanager
def progress_line(text: str, *, counted: bool = False) -> Iterator[Show]:
    """A line on standard error that says, for the length of a block, how a search stands and how long it has taken.

    Without a terminal, it is printed when its text first changes, then once in ``PACE`` seconds if it has changed, and
    at the end as it was last.

    Args:
        text: what it says at first.
        counted: whether it also counts what is done.

    Yields:
        What replaces the text, and takes how many are done, of how many.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = make_console(error=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) if counted else ()
    line = TextColumn("{task.description} after {task.elapsed:.1f} s", markup=False)
    with Progress(*columns, line, console=console, transient=True, disable=not console.is_terminal) as progress:
        number = progress.add_task(text, total=None)
        task = progress.tasks[number]
        printed, due = text, 0.0

        def say() -> None:
            nonlocal printed, due
            printed, due = task.description, (task.elapsed or 0.0) + PACE
            count = f"{task.completed:.0f}/{task.total:.0f} " if task.total else ""
            console.print(f"{count}{printed} after {task.elapsed:.1f} s")

        def show(text: str, done: int = 0, total: int | None = None) -> None:
            progress.update(number, description=text, completed=done, total=total)
            if not console.is_terminal and text != printed and (task.elapsed or 0.0) >= due:
                say()

        try:
            yield show
        finally:
            if not console.is_terminal and task.description != printed:
                say()
