"""Files with text to train on, as far as they can be judged without torch, which takes seconds to import."""

from pathlib import Path

from recycle.runtime.errors import RunError

INDEX, TOKENS = ".idx", ".bin"


def is_indexed(path: Path) -> bool:
    """Whether a path names an indexed dataset: one of its two files, or both without their endings."""
    return path.suffix in (TOKENS, INDEX) or _beside(path, INDEX).exists()


def dataset_files(path: Path) -> tuple[Path, Path]:
    """The index and the tokens of an indexed dataset.

    Raises:
        RunError: a file is missing.
    """
    prefix = path.with_suffix("") if path.suffix in (TOKENS, INDEX) else path
    index, tokens = _beside(prefix, INDEX), _beside(prefix, TOKENS)
    for file in (index, tokens):
        if not file.is_file():
            raise RunError(f"text: {file} is missing; an indexed dataset is a .bin and an .idx file of one name")
    return index, tokens


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
    """Refuse what is neither an indexed dataset nor a file that can be read.

    Raises:
        RunError: it is not.
    """
    if path.is_dir():
        raise RunError(f"text: {path} is a folder; give a file")
    if is_indexed(path):
        dataset_files(path)
        return
    read_text(path, 0)


def _beside(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)
