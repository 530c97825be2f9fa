"""Iterations that are made again, while the training code is somewhere else."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from recycle.megatron.shared.stage import MegatronStage


@contextmanager
def as_in_iteration(stages: Sequence[MegatronStage], micro_batches: int) -> Iterator[None]:
    """Within the block, stages work as in an iteration; they may have been evaluating, or have come to another.

    Args:
        stages: what computes.
        micro_batches: of each pipeline, in the iteration.
    """
    present = [(each, each.micro_batches, each.model.training) for each in stages]
    for stage, *_ in present:
        stage.micro_batches = micro_batches
        stage.model.train()
    with torch.enable_grad():
        yield
    for stage, number, mode in present:
        stage.micro_batches = number
        stage.model.train(mode)
