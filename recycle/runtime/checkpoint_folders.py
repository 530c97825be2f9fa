"""The folders of checkpoints, as far as they can be judged without torch, which takes seconds to import."""

import re
from contextlib import suppress
from pathlib import Path

from recycle.runtime.errors import RunError

CHECKPOINTS, MANIFEST = "checkpoints", "checkpoint.json"


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of a step is, if there is one."""
    return root / f"step-{step:08d}"


def checkpoints(root: Path) -> list[Path]:
    """The valid checkpoints, the newest last."""
    return [each for each in within(root) if re.fullmatch(r"step-[0-9]{8,}", each.name)]


def candidates(source: Path) -> list[Path]:
    """The checkpoints that are meant by a checkpoint's folder, or a run's; the newest last."""
    return [source] if (source / MANIFEST).exists() else checkpoints(source / CHECKPOINTS)


def within(root: Path) -> list[Path]:
    """What is in the folder of checkpoints, by name; it may be removed at any moment."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(root.iterdir())
    return []


def refuse_to_overwrite(folder: Path) -> None:
    """Refuse a folder with a run in it that this one does not go on from.

    Raises:
        RunError: there is one.
    """
    if checkpoints(folder / CHECKPOINTS):
        raise RunError(f"{folder}: there is a run in it; go on with --resume, or give another folder with --output")


def require_checkpoint(folder: Path) -> None:
    """Refuse to go on from a run's folder that has no checkpoint.

    Raises:
        RunError: it has none.
    """
    if not checkpoints(folder / CHECKPOINTS):
        raise RunError(f"resume: there is no checkpoint in {folder / CHECKPOINTS}; start without --resume")


def require_source(source: Path, folder: Path) -> None:
    """Refuse to begin from another run that has no checkpoint, if a run's folder has none of its own.

    Args:
        source: a checkpoint, or the folder of a run.
        folder: of the run that begins.

    Raises:
        RunError: it has none.
    """
    if source.resolve() != folder.resolve() and not checkpoints(folder / CHECKPOINTS) and not candidates(source):
        raise no_source(source)


def no_source(source: Path) -> RunError:
    """What is wrong with a run that has no whole checkpoint to begin from."""
    return RunError(f"resume-from: there is no whole checkpoint in {source}; give the folder of a run that has one")
