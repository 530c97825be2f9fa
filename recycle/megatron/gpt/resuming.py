"""What a run goes on from: the newest whole checkpoint."""

from collections.abc import Callable
from itertools import count

from recycle.control.joinfile import last_token
from recycle.megatron.gpt.run import Run
from recycle.record.recording import InstantLine
from recycle.record.reporting import Event
from recycle.runtime.errors import RunError
from recycle.runtime.recover.view_reports import now
from recycle.runtime.step.checkpoint import checkpoints, find_damage, read_manifest, set_aside

TO_LOOK_AT = ("events", "failures", "faults.jsonl", "tensorboard", "failure.txt", "loss.svg")
"""What a run leaves in its folder that another one in the same folder must not go on with."""


def begins_anew(run: Run) -> bool:
    """Whether it is to go on from its own folder, and there is nothing in it yet."""
    own = run.resume_from is not None and run.resume_from.resolve() == run.folder.resolve()
    kept = run.redundancy is not None and bool(last_token(run.folder))
    return own and not kept and not checkpoints(run.checkpoints)


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
    if not found:
        raise RunError(f"resume: there is no checkpoint in {run.checkpoints}; start without --resume")
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
        raise RunError(
            f"iterations is {run.iterations}, and {found[-1]} has {manifest.step} of them already; ask for more"
        )
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
        aside.mkdir()
        for each in left:
            each.rename(aside / each.name)
    except OSError as error:
        raise RunError(f"{aside}: cannot be made: {error.strerror}; give another folder with --output") from error


def refuse_to_overwrite(run: Run) -> None:
    """Refuse a folder with a run in it that this one does not go on from.

    Raises:
        RunError: there is one.
    """
    if not run.resume and run.resume_from is None and checkpoints(run.checkpoints):
        raise RunError(f"{run.folder}: there is a run in it; go on with --resume, or give another folder with --output")
