"""The folders of checkpoints, as far as they can be judged without torch, which takes seconds to import."""

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from recycle.errors import UserError
from recycle.files import from_json, read_bytes, resolved
from recycle.runtime.errors import RunError

CHECKPOINTS, MANIFEST, DIGESTS = "checkpoints", "checkpoint.json", "digests.json"

_NAME = re.compile(r"step-[0-9]{8,}")


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint is of; only a run with the same settings can go on from it.

    Attributes:
        version: of the format.
        step: how many iterations were made.
        settings: what must be the same for training to go on as if it had not stopped, by name.
        shards: the folders of its parts, each with the digests of its files.
    """

    version: int
    step: int
    settings: dict[str, Any]
    shards: tuple[str, ...] = ()


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of a step is, if there is one."""
    return root / f"step-{step:08d}"


def checkpoints(root: Path) -> list[Path]:
    """The valid checkpoints, the newest last."""
    return [each for each in within(root) if _NAME.fullmatch(each.name)]


def manifest_of(folder: Path) -> Manifest:
    """What a checkpoint says of itself.

    Raises:
        UserError: it cannot be read, or is of another step than its folder.
        msgspec.DecodeError: it is no manifest.
    """
    manifest = from_json(read_bytes(folder / MANIFEST), Manifest)
    # Who names a checkpoint that is to be gone on from may have given it any name.
    if _NAME.fullmatch(folder.name) and folder != folder_of(folder.parent, manifest.step):
        raise RunError(f"{folder}: its manifest is of step {manifest.step}")
    return manifest


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
    if resolved(source) != resolved(folder) and not checkpoints(folder / CHECKPOINTS) and not candidates(source):
        raise no_source(source)


def no_source(source: Path) -> RunError:
    """What is wrong with a run that has no whole checkpoint to begin from."""
    return RunError(f"resume-from: there is no whole checkpoint in {source}; give the folder of a run that has one")


def require_unfinished(sources: Sequence[Path], iterations: int) -> None:
    """Refuse to go on from the newest whole one of some checkpoints, if nothing is left to do.

    Args:
        sources: the checkpoints, the newest last.
        iterations: how many the run is to have.

    Raises:
        RunError: it has as many already.
    """
    for folder in reversed(sources):
        step = 0
        with suppress(UserError, msgspec.DecodeError):
            step = manifest_of(folder).step
        if step and step < iterations:
            return
        # To find that out, all of it is read.
        if step and not find_damage(folder):
            raise finished(folder, step, iterations)


def finished(folder: Path, step: int, iterations: int) -> RunError:
    """What is wrong with a checkpoint after which nothing is left to do."""
    return RunError(f"iterations is {iterations}, and {folder} has {step} of them already; ask for more")


def find_damage(folder: Path, shards: Sequence[str] = ()) -> str:
    """What is missing of a checkpoint, or is not as it was written; empty if it is whole. It reads all of it.

    Args:
        folder: of the checkpoint.
        shards: the folders of the parts that are read; all if none is named.
    """
    try:
        for shard in shards or manifest_of(folder).shards:
            digests = from_json(read_bytes(_inside(folder, shard) / DIGESTS), dict[str, str])
            for name, digest in digests.items():
                if digest_of(_inside(folder / shard, name)) != digest:
                    return f"{folder / shard / name} is not as it was written"
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    except msgspec.DecodeError as error:
        return f"{folder}: its manifest or its digests cannot be read: {error}"
    return ""


def _inside(folder: Path, name: str) -> Path:
    """What is in a checkpoint's folder by a name that a file has given.

    Raises:
        UserError: it is outside, or neither a file nor a folder.
    """
    path = folder / name
    if ".." in path.parts or Path(name).is_absolute() or (path.exists() and not (path.is_file() or path.is_dir())):
        raise UserError(f"{folder}: {name!r} is no file of this checkpoint")
    return path


def digest_of(path: Path) -> str:
    """What a file of a checkpoint is known by, as it was written."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
