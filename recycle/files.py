"""Reading and writing files: written whole or not at all, and every failure one line that names the path."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from recycle.errors import UserError


def read_bytes(path: Path) -> bytes:
    """The file's content.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except IsADirectoryError as error:
        raise UserError(f"{path}: this is a folder, and a file is needed") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into. It takes the place of ``path`` when the block ends, and only if the block succeeds.

    Raises:
        UserError: the file cannot be written; what was there before is untouched.
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
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
