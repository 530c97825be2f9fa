"""The console: the only place that prints. Reports go to standard output, progress and errors to standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console


def make_console(*, error: bool = False, color: bool = True) -> "Console":
    """A rich console on standard output, or on standard error."""
    from rich.console import Console

    return Console(stderr=error, no_color=not color, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


class ProgressLine:
    """One line on standard error that says how a search stands; without a terminal, a line for each change of text."""

    def __init__(self, console: "Console") -> None:
        self.console = console
        self.text = ""
        self.live = console.is_terminal

    def show(self, text: str) -> None:
        """Replace the line."""
        if text == self.text:
            return
        self.text = text
        if self.live:
            self.console.file.write(f"\r\x1b[2K{text}")
            self.console.file.flush()
        else:
            self.console.print(text, markup=False)

    def clear(self) -> None:
        """Take the line away, so that what is printed next stands alone."""
        if self.live and self.text:
            self.console.file.write("\r\x1b[2K")
            self.console.file.flush()
        self.text = ""


@contextmanager
def progress_line() -> Iterator[ProgressLine]:
    """A progress line for the length of a block."""
    line = ProgressLine(make_console(error=True))
    try:
        yield line
    finally:
        line.clear()
