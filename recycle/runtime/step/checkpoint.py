"""Durable checkpoints: a folder per step, with the state of every stage, there as a whole or not at all.

Peers of a stage hold the same state, so one of them writes it. All write into a folder with another name, which takes
its own when everything is on disk; what was there before stays until then.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from recycle.errors import RunFailed, UserError
from recycle.files import write_whole
from recycle.runtime.checkpoint_folders import (
    DIGESTS,
    MANIFEST,
    Manifest,
    candidates,
    checkpoints,
    digest_of,
    find_damage,
    folder_of,
    manifest_of,
    no_source,
    within,
)
from recycle.runtime.errors import RunError
from recycle.runtime.plain_words import plain
from recycle.runtime.step.stage_reader import StageReader

VERSION = 2
_PARTIAL = ".partial"
KEPT = 2
"""How many checkpoints of a run are kept, if nobody says."""


def stage_state(parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """What a stage's training goes on from, by name: its main parameters, and their optimizer's state."""
    return named_state(parameters, optimizer.state)


def named_state(
    parameters: Mapping[str, torch.Tensor], states: Mapping[torch.Tensor, Mapping[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """The same, where the optimizer's state is not as the optimizer has it.

    Args:
        parameters: the main parameters, by name.
        states: what an optimizer knows of each.
    """
    state = {}
    for name, parameter in parameters.items():
        state[f"parameter/{name}"] = parameter.detach()
        for key, value in states.get(parameter, {}).items():
            state[f"optimizer/{key}/{name}"] = value
    return state


def write_shard(folder: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write a stage's state, and the digests of its files.

    Args:
        folder: where it is being made.
        state: by name; the same state gives the same files, but for what torch says of the writing itself.

    Raises:
        RunFailed: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        dcp.save(dict(sorted(state.items())), checkpoint_id=folder, no_dist=True)
        digests = {each.name: digest_of(each) for each in sorted(folder.iterdir()) if each.name != DIGESTS}
        (folder / DIGESTS).write_bytes(msgspec.json.encode(digests))
        _sync(folder, *folder.iterdir())
    except (OSError, dcp.api.CheckpointException) as error:
        # Where there is too little room, half a checkpoint must not take what is left.
        shutil.rmtree(folder, ignore_errors=True)
        raise _unwritten(folder, error) from error


def attempt_folder(root: Path, step: int, attempt: str = "") -> Path:
    """A folder in which the checkpoint of a step is being made.

    Args:
        root: where checkpoints are.
        step: which version it is.
        attempt: a name for all who make it together; if there is none, a random one.
    """
    return root / f".step-{step:08d}.{attempt or secrets.token_hex(4)}{_PARTIAL}"


def complete(root: Path, manifest: Manifest, partial: Path, keep: int = KEPT) -> None:
    """Make a checkpoint valid once all its stages are written, and remove those that are too old.

    What was begun of older ones and not completed is removed as well. One that is there already stays as it is.

    Args:
        root: where checkpoints are.
        manifest: of this one, with all its shards.
        partial: where it was made.
        keep: how many are kept.

    Raises:
        RunFailed: it cannot be made valid.
    """
    final = folder_of(root, manifest.step)
    try:
        for each in manifest.shards:
            (partial / each / DIGESTS).stat()
        write_whole(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
        _put(partial, final)
    except (OSError, UserError) as error:
        raise _unwritten(final, error) from error
    with suppress(OSError):  # what is too old is there the next time, too
        # Of the same step, others may still be writing one.
        begun = [each for each in _begun(root) if each.name < f".{final.name}"]
        for old in (*checkpoints(root)[:-keep], *begun):
            shutil.rmtree(old, ignore_errors=True)


def give_up(root: Path) -> None:
    """Remove what was written of checkpoints that were never completed, and that nobody writes any more.

    What the file system does not let go stays.
    """
    with suppress(OSError):
        for each in _begun(root):
            shutil.rmtree(each, ignore_errors=True)


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint, so that it is none any more; gives where it is now."""
    aside = folder.with_name(f"damaged-{folder.name}")
    taken = folder.with_name(f"{aside.name}.{secrets.token_hex(4)}")
    try:
        folder.rename(taken)
    except FileNotFoundError:  # another process of the run has done it, at this moment
        return aside
    shutil.rmtree(aside, ignore_errors=True)  # an earlier one of the same step
    try:
        taken.rename(aside)
    except OSError:  # what cannot be removed keeps that name
        return taken
    return aside


def adopt(source: Path, root: Path, find_fault: Callable[[Path], str] = find_damage) -> None:
    """Take over a checkpoint of another run; its files are linked where that is possible, and copied otherwise.

    Args:
        source: a checkpoint, or the folder of a run, of which the newest whole one is taken.
        root: where the checkpoints of this run are.
        find_fault: says why no run can go on from a checkpoint; empty if one can.

    Raises:
        UserError: there is none, or it cannot be copied.
    """
    whole = [each for each in candidates(source) if not find_fault(each)]
    if not whole:
        raise no_source(source)
    step = manifest_of(whole[-1]).step
    partial = attempt_folder(root, step)
    try:
        shutil.copytree(whole[-1], partial, copy_function=_link)
        _put(partial, folder_of(root, step))
    except OSError as error:
        # Of all files that cannot be copied, a folder's copy names the cause.
        cause = error.args[0][0][-1] if isinstance(error, shutil.Error) else error
        raise RunError(f"resume-from: {whole[-1]} cannot be copied to {root}: {cause}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # it is not there any more where all went well


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _put(partial: Path, final: Path) -> None:
    """Give a finished folder its own name, for good; where a checkpoint has that name, the folder is removed."""
    if (final / MANIFEST).exists():
        shutil.rmtree(partial, ignore_errors=True)
        return
    if final.exists():
        shutil.rmtree(final)
    _sync(partial, *partial.rglob("*"))
    partial.rename(final)
    _sync(final.parent)


def _sync(*paths: Path) -> None:
    """Have files and folders on disk, each without what is in it. Torch syncs not all that it writes."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_manifest(folder: Path, settings: dict[str, Any]) -> Manifest:
    """The manifest of a checkpoint that a run with these settings can go on from.

    Raises:
        UserError: it cannot be read, or is of another step or other settings.
    """
    path = folder / MANIFEST
    try:
        manifest = manifest_of(folder)
    except msgspec.DecodeError as error:
        raise RunError(f"{path}: this is no checkpoint's manifest: {error}; resume from another one") from error
    if manifest.version != VERSION:
        raise RunError(f"{path}: version {manifest.version}, and this release reads version {VERSION}")
    require_same_settings(str(folder), manifest.settings, settings)
    return manifest


def require_same_settings(what: str, found: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings.

    Args:
        what: that a run is to go on from.
        found: the settings that it is of, by name.
        settings: of the run.

    Raises:
        RunError: they differ.
    """
    for key, value in settings.items():
        if found.get(key) != value:
            raise RunError(
                f"{what}: its {key} is {found.get(key)}, and this run's is {value}: "
                "go on with the same, or start a new run in another folder"
            )


def read_stage(folder: Path, stage: str) -> dict[str, torch.Tensor]:
    """A stage's state that a checkpoint holds, as ``stage_state`` gave it.

    Raises:
        RunError: it cannot be read.
    """
    path = folder / stage
    try:
        reader = StageReader(path)
        known = reader.read_metadata().state_dict_metadata
        state: dict[str, Any] = {
            key: torch.empty(entry.size, dtype=entry.properties.dtype)
            for key, entry in known.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        dcp.load(state, storage_reader=reader, no_dist=True)
    except (Exception, dcp.api.CheckpointException) as error:  # torch raises many kinds for a damaged file
        raise RunError(f"{path}: cannot be read: {_cause(error)}; resume from another checkpoint") from error
    return state


def give_state(
    state: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """Make main parameters and their optimizer go on from what ``stage_state`` gave; nothing older is left."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state[f"parameter/{name}"])
            optimizer.state.pop(parameter, None)
    for key, value in state.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            field, _, name = rest.partition("/")
            # Counters stay in host memory, where optimizers look at them.
            place = parameters[name].device if value.dim() else value.device
            optimizer.state[parameters[name]][field] = value.to(place)


def require_shapes(path: Path, parameters: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    """Refuse a state that is of other parameters.

    Args:
        path: where it was read.
        parameters: what must be in it.
        state: what is.

    Raises:
        RunError: one of them is not in it, or has another shape there.
    """
    for name, parameter in parameters.items():
        found = state.get(f"parameter/{name}")
        if found is None or found.shape != parameter.shape:
            has = "nothing" if found is None else str(tuple(found.shape))
            raise RunError(
                f"{path}: it holds {has} for {name}, and this model needs {tuple(parameter.shape)}: "
                "the checkpoint is of a model of another shape"
            )


def _begun(root: Path) -> list[Path]:
    return [each for each in within(root) if each.match(f".step-*{_PARTIAL}")]


def _unwritten(path: Path, error: BaseException) -> RunFailed:
    return RunFailed(
        f"checkpoint: {path} cannot be written: {_cause(error)}; make room or choose another folder. "
        "Earlier checkpoints are as they were"
    )


def _cause(error: BaseException) -> str:
    """The innermost reason, which torch wraps for every rank."""
    failures = getattr(error, "failures", None)
    if failures:
        inner = next(iter(failures.values()))
        return _cause(inner[0] if isinstance(inner, tuple) else inner)
    # What torch says of a file that it could not end comes behind what the system has said of it.
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, OSError) and each.strerror:
            return each.strerror
        each = each.__cause__ or each.__context__
    return plain(str(error)) or type(error).__name__
