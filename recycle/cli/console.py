"""The console: the only place that prints. Reports go to standard output, progress and errors to standard error."""

import threading
import time
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
    """One line on standard error that says how a search stands and for how long it has been going on.

    Without a terminal it is printed anew whenever its text changes, and does not tick.
    """

    def __init__(self, console: "Console", text: str) -> None:
        self.console = console
        self.text = text
        self.live = console.is_terminal
        self.began = time.monotonic()
        self.stopped = threading.Event()
        self.ticker = threading.Thread(target=self._tick, daemon=True)
        if self.live:
            self.ticker.start()

    def show(self, text: str) -> None:
        """Replace the text."""
        if text == self.text:
            return
        self.text = text
        if self.live:
            self._draw()
        else:
            self.console.print(f"{text} after {self._elapsed()}", markup=False)

    def clear(self) -> None:
        """Take the line away, so that what is printed next stands alone."""
        self.stopped.set()
        if self.live:
            self.ticker.join()
            self.console.file.write("\r\x1b[2K")
            self.console.file.flush()

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self.began:.1f} s"

    def _draw(self) -> None:
        self.console.file.write(f"\r\x1b[2K{self.text} after {self._elapsed()}")
        self.console.file.flush()

    def _tick(self) -> None:
        while not self.stopped.wait(0.2):
            self._draw()


@contextmanager
def progress_line(text: str) -> Iterator[ProgressLine]:
    """A progress line for the length of a block, which begins with a text."""
    line = ProgressLine(make_console(error=True), text)
    try:
        yield line
    finally:
        line.clear()
