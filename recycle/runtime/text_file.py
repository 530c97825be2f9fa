"""Files with text to train on, as far as they can be judged without torch, which takes seconds to import."""

from pathlib import Path

from recycle.runtime.errors import RunError

DATASET = (".bin", ".idx")
"""Endings of a dataset of tokens, whose bytes are no text."""


def read_text(path: Path, most: int = -1) -> bytes:
    """The text in a file.

    Args:
        path: of it.
        most: bytes that are read; all if it is -1.

    Raises:
        RunError: it cannot be read, or is no file.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        # It may have no end, and servers that join later read it again.
        raise RunError(f"text: {path} is a device or a pipe; give a file")
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise RunError(f"text: {path} cannot be read: {error.strerror}; give another file") from error


def require_text(path: Path) -> None:
    """Refuse what is no file of text that can be read.

    Raises:
        RunError: it is not.
    """
    if path.is_dir():
        raise RunError(f"text: {path} is a folder; give a file")
    if path.suffix in DATASET:
        raise RunError(f"text: {path} is of a dataset of tokens; give a file of text, which is read as bytes")
    read_text(path, 0)
