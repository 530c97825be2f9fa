"""Megatron's checkpoints where servers are dead, die while one is written, or have no room for it."""

import errno
import inspect
import re
import shutil
import tempfile
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from queue import Empty
from threading import RLock
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.api import CheckpointException

from recycle.megatron.shared.patching import replace
from recycle.runtime.errors import ViewBroken
from recycle.saying import say

OF_DISKS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ENOENT),
    *(errno.EEXIST, errno.ENOTDIR, errno.ESTALE),
)
"""With which the system says that a file cannot be written."""

PROBE = 1 << 20
"""Bytes that are written to see whether a folder takes them."""

TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron's file that names the checkpoint from which the next start goes on; it is written when that is whole."""

SAVE = "save"
"""What all who live do together."""

KEPT = ("save_strategy", "load_strategy")
"""What Megatron keeps between saves, in its context: who writes what, which another view does otherwise."""


class Living(Protocol):
    """Who is alive."""

    @property
    def epoch(self) -> int:
        """Of the view; -1 before the first one."""

    def settle(self) -> None:
        """Make sure that what is saved will stay what it is; all servers come here."""

    def together(self, kind: str, act: Callable[[], None]) -> None:
        """Do something as if nobody but the living had been started, again wherever one of them dies meanwhile.

        When it returns, all have done it in one and the same view.

        Args:
            kind: what is done.
            act: does it; given up in the middle by a ViewBroken of its collectives.
        """


def save_by_the_living(
    save: Callable[..., None], view: Living, arguments: Any, note: Callable[[bool], None]
) -> Callable[..., None]:
    """Megatron's ``save_checkpoint``, by all who live: given up whole where one dies, and made again without it.

    What a dead server would have written, its peers write: to Megatron the job is as large as there are live servers.
    Where one of them cannot write it, that is no death: all give it up together, and training goes on without it.
    Whatever happens, the whole checkpoint that Megatron's tracker names stays until it names another one.

    Args:
        save: Megatron's own.
        view: of the live servers.
        arguments: Megatron's.
        note: called on each rank after a save, with whether all have written it.
    """
    from megatron.training import checkpointing

    signature = inspect.signature(save)
    last = view.epoch
    under_way = RLock()
    append = checkpointing.append_to_progress_log

    @wraps(append)
    def append_to_progress_log(*positional: Any, **keywords: Any) -> None:
        # A thread that removes an old checkpoint notes how many ranks there are, and Megatron ends if it finds another
        # number than that of the ranks which were started.
        with under_way:
            append(*positional, **keywords)

    replace(checkpointing, "append_to_progress_log", append_to_progress_log)

    @wraps(save)
    def save_checkpoint(*positional: Any, **keywords: Any) -> None:
        given = signature.bind(*positional, **keywords).arguments
        name = str(given["iteration"])
        folder, unfinished = Path(arguments.save), f"iter_{name:0>7}"
        if given.get("non_persistent_ckpt"):
            # Of these Megatron itself removes all but the newest, be that whole or not.
            folder, unfinished = Path(arguments.non_persistent_global_ckpt_dir or folder / "non_persistent"), "iter_*"
        named = _named(folder)
        is_refused = False
        refusal: str | None = None

        def act() -> None:
            nonlocal is_refused, last, refusal
            if view.epoch != last:
                _forget(given.get("checkpointing_context"))
            last = view.epoch
            # If the tracker names this checkpoint, all ranks have written their parts, those that died as well.
            is_refused, is_whole = _any(refusal is not None, named != name == _named(folder))
            is_refused &= not is_whole
            if not is_whole:
                _clear(folder, named, unfinished)
            if is_whole or is_refused:
                return
            # A reader looks for a part of each.
            arguments.world_size = torch.distributed.get_world_size()
            try:
                save(*positional, **keywords)
            except ViewBroken:
                raise
            except (Exception, CheckpointException) as error:  # a full disk is said in many ways
                refusal = _refusal(error, folder)
                # Torch raises that on all ranks where it cannot be written by one.
                if refusal is None and not isinstance(error, CheckpointException):
                    raise
                # The others wait for this rank inside Megatron's function, and only the end of the view gets them out.
                raise ViewBroken(f"a checkpoint cannot be written: {refusal or 'by another rank'}") from error

        view.settle()
        world_size = arguments.world_size
        with under_way:
            try:
                view.together(SAVE, act)
            finally:
                arguments.world_size = world_size
        note(not is_refused)
        if is_refused and refusal is not None:
            after = "training goes on, and earlier checkpoints are as they were"
            if given["iteration"] == arguments.train_iters:
                after = "training has ended without it: make room, and go on from an earlier one with --load"
            say(f"the checkpoint of iteration {name} cannot be written: {refusal}; {after}")

    return save_checkpoint


def _forget(context: MutableMapping[str, Any] | None) -> None:
    """Forget who wrote what in another view, and what was written in it and never finished."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    for name in KEPT:
        (context or {}).pop(name, None)
    written = filesystem_async._results_queue  # noqa: SLF001 - Megatron has no other way to it
    with suppress(Empty):
        while written is not None:
            written.get_nowait()


def _named(folder: Path) -> str:
    """What the tracker there names; empty if it is missing, or if its writer died."""
    with suppress(OSError):
        return (folder / TRACKER).read_text().strip()
    return ""


def _clear(folder: Path, named: str, unfinished: str) -> None:
    """Remove what a save has left that came to no end: a reader could take it for a checkpoint.

    Args:
        folder: of checkpoints.
        named: by the tracker, before this save; that stays.
        unfinished: a pattern of what may be removed.
    """
    if torch.distributed.get_rank() == 0:
        for each in folder.glob(unfinished):
            if each.name != f"iter_{named:0>7}":
                shutil.rmtree(each, ignore_errors=True)
        if named and not _named(folder):
            with suppress(OSError):
                (folder / TRACKER).write_text(named)
    torch.distributed.barrier()


def _any(*here: bool) -> list[bool]:
    """Which of some things are so on any server; all get the same answer."""
    anywhere = torch.tensor(here, dtype=torch.int32)
    torch.distributed.all_reduce(anywhere, op=torch.distributed.ReduceOp.MAX)
    return [bool(each) for each in anywhere.tolist()]


def _refusal(error: BaseException, folder: Path) -> str | None:
    """Why a checkpoint could not be written there; None where that is no matter of disks, or the first rank knows."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in OF_DISKS:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, CheckpointException) and torch.distributed.get_rank():
        return None
    # What went wrong on another rank comes as a text.
    said = " ".join(str(each) for each, _ in getattr(error, "failures", {}).values())
    if found := re.search(r"\[Errno \d+\] ([^:\n]+)", said):
        return found[1]
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(bytes(PROBE))
    except OSError as refused:
        return refused.strerror
    return said.partition("\n")[0] or None
