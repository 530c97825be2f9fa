"""What a run goes on from: the newest whole checkpoint, or copies in memory, and with which settings."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from recycle.control.board.joinfile import last_token
from recycle.errors import UserError
from recycle.files import from_json, own_folder, read_bytes, write_whole
from recycle.megatron.gpt.run import NO_PARITY, Run
from recycle.record.recording import InstantLine
from recycle.record.reporting import Event
from recycle.runtime.checkpoint_folders import (
    MANIFEST,
    Manifest,
    candidates,
    checkpoints,
    find_damage,
    finished,
    require_checkpoint,
)
from recycle.runtime.errors import RunError
from recycle.runtime.launch.meet.keepers import is_kept
from recycle.runtime.recover.view_reports import now
from recycle.runtime.step.checkpoint import read_manifest, require_same_settings, set_aside

IN_MEMORY = "in-memory.json"
"""The settings of what a run keeps in memory: keepers are asked for it by those who have been started."""

TO_LOOK_AT = ("events", "failures", "faults.jsonl", "tensorboard", "loss.svg")
"""What a run leaves in its folder that another one in the same folder must not go on with."""


def begins_anew(run: Run) -> bool:
    """Whether it is to go on from its own folder, and there is nothing in it yet."""
    own = run.resume_from is not None and run.resume_from.resolve() == run.folder.resolve()
    kept = run.redundancy is not None and bool(last_token(run.folder))
    return own and not kept and not checkpoints(run.checkpoints)


def require_fit(run: Run, fingerprint: str) -> None:
    """Refuse to go on with other settings than what there is was made with, while nothing is written or started.

    Args:
        run: what is to go on.
        fingerprint: tells apart what is trained on.

    Raises:
        RunError: it cannot go on so.
    """
    if not run.goes_on:
        return
    found = checkpoints(run.checkpoints)
    sources = found or ([] if run.resume_from is None else candidates(run.resume_from))
    if sources and (manifest := _newest_manifest(sources)) is not None:
        require_same_settings(manifest[0], manifest[1].settings, run.settings | {"text": fingerprint})
    token, kept = last_token(run.folder), _settings_in_memory(run)
    if not token or not kept or (sources and not is_kept(token)):
        return
    if run.redundancy is not None:
        what, asked = f"what {run.folder} has in memory", run.settings_in_memory(fingerprint)
        # Copies are read whatever is kept from now on.
        same = {"parity": kept["parity"]} if kept.get("parity") == NO_PARITY else {}
        require_same_settings(what, kept, asked | same)
    elif not sources:
        raise RunError(
            f"resume: there is no checkpoint in {run.checkpoints}, and what is in memory is not asked for; give "
            "--keep-in-memory as before"
        )


def note_settings(run: Run, fingerprint: str) -> None:
    """Write down what is needed to judge whether a later start can go on from what this one keeps in memory.

    Args:
        run: which.
        fingerprint: tells apart what is trained on.

    Raises:
        UserError: it cannot be written.
    """
    path = run.folder / IN_MEMORY
    if run.redundancy is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, msgspec.json.format(msgspec.json.encode(run.settings_in_memory(fingerprint))), private=True)


def _newest_manifest(sources: Sequence[Path]) -> tuple[str, Manifest] | None:
    """Of the newest checkpoint that has one which can be read; all in a folder are of the same settings."""
    for folder in reversed(sources):
        with suppress(UserError, msgspec.DecodeError):
            return str(folder), from_json(read_bytes(folder / MANIFEST), Manifest)
    return None


def _settings_in_memory(run: Run) -> dict[str, Any]:
    """Of the last start in a run's folder; empty where it kept nothing, or that cannot be read."""
    with suppress(UserError, msgspec.DecodeError):
        return from_json(read_bytes(run.folder / IN_MEMORY), dict[str, Any])
    return {}


def find_newest(run: Run, fingerprint: str, watch: Callable[[Event], None]) -> int | None:
    """The step of the checkpoint that a run goes on from; None where keepers may have what it goes on from.

    Args:
        run: what is to go on.
        fingerprint: tells apart what is trained on.
        watch: is told of checkpoints that are damaged, and set aside.

    Raises:
        UserError: there is none that is whole, or nothing is left to do.
    """
    found = checkpoints(run.checkpoints)
    if not found and run.redundancy is not None and last_token(run.folder):
        return None  # what keepers have is known when servers ask them
    require_checkpoint(run.folder)
    damaged = {}
    while found and (damage := find_damage(found[-1])):
        damaged[found.pop()] = damage
    if not found:
        raise RunError(f"resume: no checkpoint in {run.checkpoints} is whole: {'; '.join(damaged.values())}")
    manifest = read_manifest(found[-1], run.settings | {"text": fingerprint})
    for folder, damage in damaged.items():
        text = f"{damage}: the checkpoint is set aside as {set_aside(folder)}, and {found[-1].name} is taken"
        watch(InstantLine("warning", now(), None, text))
    if manifest.step >= run.iterations:
        raise finished(found[-1], manifest.step, run.iterations)
    return manifest.step


def set_earlier_aside(run: Run) -> None:
    """Move what an earlier start has left to look at to a folder of its own, where this run does not go on from that.

    Raises:
        RunError: it cannot be moved.
    """
    left = [path for name in TO_LOOK_AT if (path := run.folder / name).exists()]
    if run.goes_on or not left:
        return
    aside = next(path for number in count(1) if not (path := run.folder / f"earlier-{number}").exists())
    try:
        own_folder(aside)
        for each in left:
            each.rename(aside / each.name)
    except OSError as error:
        raise RunError(f"{aside}: cannot be made: {error.strerror}; give another folder with --output") from error
