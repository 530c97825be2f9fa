"""Megatron's checkpoints where servers are dead, die while one is written, or have no room for it."""

import errno
import inspect
import shutil
import tempfile
from collections.abc import Callable, MutableMapping
from functools import wraps
from pathlib import Path
from queue import Empty
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.api import CheckpointException

from recycle.runtime.errors import ViewBroken
from recycle.saying import say

OF_DISKS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.ESTALE,
}
"""With which the system says that a file cannot be written."""

PROBE = 1 << 20
"""Bytes that are written to see whether a folder takes them."""

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

    Args:
        save: Megatron's own.
        view: of the live servers.
        arguments: Megatron's.
        note: called on each rank after a save, with whether all have written it.
    """
    signature = inspect.signature(save)
    last = view.epoch

    @wraps(save)
    def save_checkpoint(*positional: Any, **keywords: Any) -> None:
        given = signature.bind(*positional, **keywords).arguments
        begun = is_refused = False
        refusal: OSError | None = None

        def act() -> None:
            nonlocal begun, is_refused, last, refusal
            if view.epoch != last:
                _forget(given.get("checkpointing_context"))
            last = view.epoch
            # Who is not through this call does not know whether others are, and write.
            again, begun = begun, True
            again_anywhere, is_refused = _any(again, refusal is not None)
            if again_anywhere:
                _clear(arguments, given)
            if is_refused:
                return
            # A reader looks for a part of each.
            arguments.world_size = torch.distributed.get_world_size()
            try:
                save(*positional, **keywords)
            except ViewBroken:
                raise
            except (Exception, CheckpointException) as error:  # a full disk is said in many ways
                refusal = _refusal(error, Path(arguments.save))
                # Torch raises that on all ranks where it cannot be written by one.
                if refusal is None and not isinstance(error, CheckpointException):
                    raise
                cause = "by another rank" if refusal is None else refusal.strerror
                # The others wait for this rank inside Megatron's function, and only the end of the view gets them out.
                raise ViewBroken(f"a checkpoint cannot be written: {cause}") from error

        view.settle()
        world_size = arguments.world_size
        try:
            view.together(SAVE, act)
        finally:
            arguments.world_size = world_size
        note(not is_refused)
        if refusal is not None:
            after = "training goes on, and earlier checkpoints are as they were"
            if given["iteration"] == arguments.train_iters:
                after = "training has ended without it: make room, and go on from an earlier one with --load"
            say(f"the checkpoint of iteration {given['iteration']} cannot be written: {refusal.strerror}; {after}")

    return save_checkpoint


def _forget(context: MutableMapping[str, Any] | None) -> None:
    """Forget who wrote what in another view, and what was written in it and never finished."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    for name in KEPT:
        if context is not None:
            context.pop(name, None)
    written = filesystem_async._results_queue  # noqa: SLF001 - Megatron has no other way to it
    try:
        while written is not None:
            written.get_nowait()
    except Empty:
        pass


def _clear(arguments: Any, given: MutableMapping[str, Any]) -> None:
    """Remove what was begun in another view, which a reader could take for the checkpoint."""
    from megatron.training.checkpointing import get_checkpoint_name

    if torch.distributed.get_rank() == 0 and not given.get("non_persistent_ckpt"):
        release = given.get("release", False)
        folder = get_checkpoint_name(arguments.save, given["iteration"], release, return_base_dir=True)
        shutil.rmtree(Path(folder), ignore_errors=True)
    torch.distributed.barrier()


def _any(*here: bool) -> list[bool]:
    """Which of some things are so on any server; all get the same answer."""
    anywhere = torch.tensor(here, dtype=torch.int32)
    torch.distributed.all_reduce(anywhere, op=torch.distributed.ReduceOp.MAX)
    return [bool(each) for each in anywhere.tolist()]


def _refusal(error: BaseException, folder: Path) -> OSError | None:
    """What the system says of a checkpoint that could not be written there; None where that is not why."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in OF_DISKS:
            return cause
        cause = cause.__cause__ or cause.__context__
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE))
    except OSError as refused:
        return refused
    return None
