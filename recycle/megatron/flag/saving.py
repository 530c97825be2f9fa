"""Megatron's checkpoints where servers are dead, or die while one is written."""

import inspect
import shutil
from collections.abc import Callable, MutableMapping
from functools import wraps
from pathlib import Path
from queue import Empty
from typing import Any, Protocol

import torch

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


def save_by_the_living(save: Callable[..., None], view: Living, arguments: Any) -> Callable[..., None]:
    """Megatron's ``save_checkpoint``, by all who live: given up whole where one dies, and made again without it.

    What a dead server would have written, its peers write: to Megatron the job is as large as there are live servers.

    Args:
        save: Megatron's own.
        view: who is alive.
        arguments: Megatron's.
    """
    signature = inspect.signature(save)
    last = view.epoch

    @wraps(save)
    def save_checkpoint(*positional: Any, **keywords: Any) -> None:
        given = signature.bind(*positional, **keywords).arguments
        begun = False

        def act() -> None:
            nonlocal begun, last
            if view.epoch != last:
                _forget(given.get("checkpointing_context"))
            last = view.epoch
            # Who is not through this call does not know whether others are, and write.
            again, begun = begun, True
            if _any(again):
                _clear(arguments, given)
            # A reader looks for a part of each.
            arguments.world_size = torch.distributed.get_world_size()
            save(*positional, **keywords)

        view.settle()
        world_size = arguments.world_size
        try:
            view.together("save", act)
        finally:
            arguments.world_size = world_size

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


def _any(here: bool) -> bool:
    """Whether something is so on any server; all get the same answer."""
    anywhere = torch.tensor([here], dtype=torch.int32)
    torch.distributed.all_reduce(anywhere, op=torch.distributed.ReduceOp.MAX)
    return bool(anywhere.item())
