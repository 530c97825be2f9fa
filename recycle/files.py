"""Reading and writing files: written whole or not at all, and every failure one line that names the path."""

import codecs
import csv
import errno
import io
import json
import os
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from recycle.errors import UserError
from recycle.keys import explained

STANDARD = Path("-")
"""Standard input, where a file is read, and standard output, where one is written."""

LARGEST = 1 << 29
"""Bytes of a file that is read whole: the largest plan that is ever made has less."""

LONGEST_LINE = 1 << 26
"""Bytes of a line in a file of any size: no line of ours has so many."""

_PIECE = 1 << 20

_FOREIGN = {
    b"\x1f\x8b": "packed with gzip: unpack it",
    b"BZh": "packed with bzip2: unpack it",
    b"\xfd7zXZ": "packed with xz: unpack it",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it",
    b"7z\xbc\xaf": "a 7z archive: unpack it",
    b"PAR1": "a Parquet file: save it as text",
    b"\xd0\xcf\x11\xe0": "an Excel workbook: save it as text",
    b"SQLite format 3": "an SQLite database: save a table as text",
    b"%PDF": "a PDF document: save it as text",
    b"version https://git-lfs": "a pointer of Git LFS: get the file itself with git lfs pull",
}
"""What a file is that begins so, whatever its name says, and what to do with it: no file that is read here does."""

_WIDE = {
    # The mark of UTF-16 is how that of UTF-32 begins.
    (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE): "utf-32",
    (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE): "utf-16",
}
"""Encodings of more than a byte a letter, by the marks that texts in them begin with."""

T = TypeVar("T")


def resolved(path: Path) -> Path:
    """The path without links; where they lead in a circle, Python's own raises what is no error of the system."""
    return Path(os.path.realpath(path))


def read_bytes(path: Path) -> bytes:
    """The file's content; what a byte-order mark says to be UTF-32, UTF-16 or UTF-8 comes as UTF-8 without it.

    Raises:
        UserError: the file cannot be read, or is larger than any of ours.
    """
    with _readable(path) as file:
        content = _standard_input(file) if path == STANDARD else _all_of(file)
    if content is None:
        raise UserError(f"{path}: it has more than {LARGEST} bytes, and no file that is read here has so many")
    foreign = next((what for mark, what in _FOREIGN.items() if content.startswith(mark)), None)
    if foreign is not None:
        raise UserError(f"{path}: this is {foreign}")
    return without_mark(content)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file of any size, one by one; a last line without an end is left out.

    Raises:
        UserError: the file cannot be read, or has a line that is longer than any of ours.
    """
    with _readable(path) as file:
        if file.read(4).startswith(tuple(mark for marks in _WIDE for mark in marks)):
            # Its lines end with more than a byte.
            *lines, _ = read_bytes(path).split(b"\n")
            yield from lines
            return
        file.seek(0)
        mark = codecs.BOM_UTF8
        while (line := file.readline(LONGEST_LINE)).endswith(b"\n"):
            yield line[:-1].removeprefix(mark)
            mark = b""
        _require_no_longer(line, path)


def read_backwards(path: Path) -> Iterator[bytes]:
    """The same lines of a file in UTF-8, the last one first.

    Raises:
        UserError: the file cannot be read, or has a line that is longer than any of ours.
    """
    with _readable(path) as file:
        end, first, is_whole = file.seek(0, os.SEEK_END), b"", False
        while end:
            begin = max(0, end - _PIECE)
            file.seek(begin)
            first, *lines = (file.read(end - begin) + first).split(b"\n")
            # Behind the last end of a line is none.
            yield from reversed(lines if is_whole else lines[:-1])
            is_whole, end = is_whole or bool(lines), begin
            _require_no_longer(first, path)
        if is_whole:
            yield first.removeprefix(codecs.BOM_UTF8)


def _require_no_longer(line: bytes, path: Path) -> None:
    if len(line) >= LONGEST_LINE:
        raise UserError(f"{path}: it has a line of {LONGEST_LINE} bytes or more, and no file that is read here has one")


@contextmanager
def _readable(path: Path) -> Iterator[IO[bytes]]:
    """A file to read from, or standard input. What fails within the block is a line that names it."""
    if path == STANDARD:
        _require_open("standard input", sys.stdin)
    try:
        with nullcontext(sys.stdin.buffer) if path == STANDARD else _opened(path) as file:
            yield file
    except IsADirectoryError as error:
        raise UserError(f"{path}: this is a folder, and a file is needed") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


@lru_cache(1)
def _standard_input(stream: IO[bytes]) -> bytes | None:
    """All of it, which a verb may ask for again, as for a file."""
    return _all_of(stream)


def _all_of(stream: IO[bytes]) -> bytes | None:
    """What a stream has; None if that is more than is read of any. Room is taken for what is there alone."""
    parts = []
    left = LARGEST
    with suppress(io.UnsupportedOperation):  # of a stream in memory
        if os.fstat(stream.fileno()).st_size > left:
            return None
    while part := stream.read(_PIECE):
        parts.append(part)
        left -= len(part)
        if left < 0:
            return None
    return b"".join(parts)


def _require_open(name: str, stream: object) -> None:
    if stream is None:
        raise UserError(f"{name}: it is closed; give a file in the place of {STANDARD}")


def _opened(path: Path) -> IO[bytes]:
    """A file to read; of a pipe without a writer there is nothing, and nothing is waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb")


def from_json(content: bytes, kind: type[T]) -> T:
    """Decode the content of a JSON file.

    Args:
        content: the file's.
        kind: what it must be.

    Raises:
        msgspec.DecodeError: it is not that, is nested too deeply, or gives a key twice, of which one would be lost.
    """
    try:
        decoded = _decoded(content, kind)
        json.loads(content, object_pairs_hook=_require_once)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error
    except msgspec.ValidationError:
        raise
    except (ValueError, UnicodeDecodeError) as error:
        at = re.search(r" \(byte (\d+)\)$", str(error))
        line = "" if at is None else f", line {content.count(bytes([10]), 0, int(at[1])) + 1}"
        raise msgspec.DecodeError(f"{error}{line}") from error
    return decoded


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise explained(error, msgspec.json.decode(content), kind) from error


def _require_once(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise msgspec.DecodeError(f"key {key[:100]!r} is given twice")
        seen.add(key)


def without_mark(content: bytes) -> bytes:
    """A text as UTF-8 without a byte-order mark; what begins with none is left as it is."""
    for marks, encoding in _WIDE.items():
        if content.startswith(marks):
            try:
                return content.decode(encoding).encode()
            except UnicodeError:
                continue
    return content.removeprefix(codecs.BOM_UTF8)


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """A file to write into. It takes the place of ``path`` when the block ends, and only if the block succeeds.

    Where a link leads elsewhere, the file there is replaced and the link stays; the new file has the mode of the old
    one. A device or a pipe is written to.

    Args:
        path: where to.
        private: whether nobody but its owner may read it, at no moment.

    Raises:
        UserError: the file cannot be written; what was there before is untouched.
    """
    if path == STANDARD:
        # What stands in for a closed one takes everything.
        _require_open("standard output", sys.__stdout__)
        content = io.BytesIO()
        yield content
        sys.stdout.flush()
        sys.stdout.buffer.write(content.getvalue())
        sys.stdout.buffer.flush()
        return
    temporary: Path | None = None
    given = path
    try:
        path = resolved(path)
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        before = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        # The kernel takes the process's mask from what a new file may be; to ask for the mask is to change it for all.
        new = 0o600 if private or before is not None else 0o666
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, new)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if before is not None and not private:
                os.fchmod(file.fileno(), before)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{given}: cannot be written: {error.strerror}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file so that at every moment either its old or its whole new content is there.

    Args:
        path: where to.
        content: what is to be there.
        private: whether nobody but its owner may read it, at no moment.

    Raises:
        UserError: the file cannot be written; what was there before is untouched.
    """
    with whole_file(path, private=private) as file:
        file.write(content)


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def require_writable(path: Path, *, folder: bool = False) -> None:
    """See, before any work is done for it, that a file can be written; nothing is left there.

    Args:
        path: of the file.
        folder: whether it is a folder instead, which is made if it is not there.

    Raises:
        UserError: it cannot be written.
    """
    if path == STANDARD and not folder:
        _require_open("standard output", sys.__stdout__)
        return
    try:
        target = resolved(path)
        if os.path.lexists(target):
            target.stat()  # or it is a link that leads to itself
        if target.is_dir() and not folder:
            raise IsADirectoryError(errno.EISDIR, "there is a folder of this name")
        if target.exists() and not folder and not target.is_file():
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        place = target if folder else target.parent
        while not place.exists():
            place = place.parent
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; give another place") from error


def own_folder(folder: Path) -> None:
    """Make a folder, and those above it, if it is not there; what is in it is for its user alone.

    Raises:
        OSError: it cannot be made.
    """
    folder.mkdir(0o700, parents=True, exist_ok=True)


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
