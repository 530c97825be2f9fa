"""Megatron's checkpoints where servers are dead, or die while one is written."""

import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

import torch


class Watched(Protocol):
    """What is known of the view.

    Attributes:
        epoch: its number.
        has_lost: whether servers are dead.
    """

    @property
    def epoch(self) -> int:
        """See above."""

    @property
    def has_lost(self) -> bool:
        """See above."""

    def settle(self) -> None:
        """Make sure that what is saved will stay what it is; all servers come here."""


def _clear(arguments: Any, iteration: int, *_: Any, **__: Any) -> None:
    """Remove what was begun in another format, which a reader would take for the checkpoint."""
    from megatron.training.checkpointing import get_checkpoint_name

    folder = Path(get_checkpoint_name(arguments.save, iteration, return_base_dir=True))
    if torch.distributed.get_rank() == 0 and (folder / "common.pt").exists():
        shutil.rmtree(folder)
    torch.distributed.barrier()


def _any(here: bool) -> bool:
    """Whether something is so on any server; all get the same answer."""
    anywhere = torch.tensor([here], dtype=torch.int32)
    torch.distributed.all_reduce(anywhere, op=torch.distributed.ReduceOp.MAX)
    return bool(anywhere.item())


def save_by_the_living(save: Callable[..., None], view: Watched, arguments: Any) -> Callable[..., None]:
    """Megatron's ``save_checkpoint``, made again where somebody died meanwhile.

    With dead servers the checkpoint has format torch, which is a file for each stage: in others all ranks write a part.

    Args:
        save: Megatron's own.
        view: who is alive.
        arguments: Megatron's.
    """

    @wraps(save)
    def save_checkpoint(*positional: Any, **keywords: Any) -> None:
        view.settle()
        while True:
            epoch = view.epoch
            # A death may be known here and not yet elsewhere, and all must do the same.
            if _any(view.has_lost):
                save_as_torch(*positional, **keywords)
            else:
                save(*positional, **keywords)
            if not _any(view.epoch != epoch):
                return

    def save_as_torch(*positional: Any, **keywords: Any) -> None:
        _clear(arguments, *positional, **keywords)
        given = arguments.ckpt_format, arguments.use_dist_ckpt, arguments.async_save
        arguments.ckpt_format, arguments.use_dist_ckpt, arguments.async_save = "torch", False, False
        try:
            save(*positional, **keywords)
        finally:
            arguments.ckpt_format, arguments.use_dist_ckpt, arguments.async_save = given

    return save_checkpoint
