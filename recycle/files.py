"""Reading and writing files: written whole or not at all, and every failure one line that names the path."""

import codecs
import io
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from recycle.errors import UserError

STANDARD = Path("-")
"""Standard input, where a file is read, and standard output, where one is written."""


def read_bytes(path: Path) -> bytes:
    """The file's content; what a byte-order mark says to be UTF-16, or UTF-8, comes as UTF-8 without it.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        if path == STANDARD:
            return without_mark(sys.stdin.buffer.read())
        return without_mark(path.read_bytes())
    except IsADirectoryError as error:
        raise UserError(f"{path}: this is a folder, and a file is needed") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def without_mark(content: bytes) -> bytes:
    """A text as UTF-8 without a byte-order mark; what begins with none is left as it is."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return content.decode("utf-16").encode()
        except UnicodeError:
            return content
    return content.removeprefix(codecs.BOM_UTF8)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into. It takes the place of ``path`` when the block ends, and only if the block succeeds.

    Where a link leads elsewhere, the file there is replaced and the link stays; the new file has the mode of the old
    one. A device or a pipe is written to.

    Raises:
        UserError: the file cannot be written; what was there before is untouched.
    """
    if path == STANDARD:
        content = io.BytesIO()
        yield content
        sys.stdout.flush()
        sys.stdout.buffer.write(content.getvalue())
        sys.stdout.buffer.flush()
        return
    temporary: Path | None = None
    given = path
    try:
        path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{given}: cannot be written: {error.strerror}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that at every moment either its old or its whole new content is there.

    Raises:
        UserError: the file cannot be written; what was there before is untouched.
    """
    with whole_file(path) as file:
        file.write(content)


def require_temporary_folder() -> None:
    """See that there is a folder for temporary files, without which torch cannot be imported.

    Raises:
        UserError: none can be written.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UserError(
            f"TMPDIR is {os.environ.get('TMPDIR', 'not set')}: no temporary file can be written there, in /tmp, "
            "/var/tmp, /usr/tmp or this folder; make room, or set TMPDIR to a folder that can be written"
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
