"""What surrounds a command: its streams, the width of its terminal, and variables of other programs. In one place.

A pipe that is closed ends the command with the status of SIGPIPE, and without a word, as it ends other programs; what
else keeps standard output from being written is one line. Characters that an encoding lacks are replaced.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from recycle.errors import UserError

CLOSED_PIPE = 128 + signal.SIGPIPE
WIDEST = 10_000
"""Columns of the widest terminal that is believed."""


@contextmanager
def settled() -> Iterator[None]:
    """Whatever surrounds a block, it can print, and all that it prints is written when it ends.

    Raises:
        UserError: standard output cannot be written.
        SystemExit: the reader of standard output has ended.
    """
    columns = os.environ.get("COLUMNS")
    if columns is not None and not _is_width(columns):
        del os.environ["COLUMNS"]
    before = sys.stdout, sys.stderr
    # Where a stream was closed before the start, there is none.
    sys.stdout = output = cast("Any", _Output(sys.stdout or _nowhere()))
    sys.stderr = sys.stderr or _nowhere()
    for stream in before:
        # Under the locales C and POSIX Python lets undecodable bytes through, and fails at all that ASCII lacks.
        if getattr(stream, "errors", None) in ("strict", "surrogateescape"):
            # What was a file when Python began, and is a pipe now, has no place that could be asked for.
            with suppress(OSError):
                stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        yield
        output.flush()
    except SystemExit:
        output.flush()
        raise
    finally:
        for stream in (sys.stdout, sys.stderr):
            give_up_unwritten(stream)
        sys.stdout, sys.stderr = before


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Within it, Ctrl-C ends the process without Python's help: for imports whose libraries load for seconds.

    While a library is loaded, no handler runs. Nothing may have been begun that has to be tidied up.
    """
    handler = signal.getsignal(signal.SIGINT)
    # In the background of a shell it is ignored.
    if handler != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _is_width(columns: str) -> bool:
    digits = columns.lstrip("0")
    return columns.isascii() and columns.isdecimal() and 0 < len(digits) <= len(str(WIDEST)) and int(digits) <= WIDEST


def _nowhere() -> IO[str]:
    return Path(os.devnull).open("w")


def give_up_unwritten(stream: IO[str]) -> None:
    """Let go what a stream cannot write, so that the end of the process does not try again, and fail."""
    try:
        stream.flush()
    except (OSError, UserError, SystemExit):
        _let_go(stream)


def _let_go(stream: IO[Any]) -> None:
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class _Output:
    """Standard output, whose failures end the command in an orderly way.

    Args:
        stream: where to.
    """

    def __init__(self, stream: IO[Any]) -> None:
        self._stream = stream

    @property
    def buffer(self) -> "_Output":
        """The same for bytes."""
        return _Output(cast("Any", self._stream).buffer)

    def write(self, text: str | bytes) -> int:
        # click tries with nothing whether it can write, and takes a failure for an answer.
        if text == "":
            return 0
        try:
            return self._stream.write(text)
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> NoReturn:
        _let_go(self._stream)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(CLOSED_PIPE) from error
        raise UserError(f"standard output: cannot be written: {error.strerror}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
