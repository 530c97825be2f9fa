"""Stages in checkpoints, also of a model that was cut into another number of them: layers have other numbers there."""

import re
from pathlib import Path
from typing import NamedTuple

import torch

from recycle.runtime.step.checkpoint import read_stage

_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.)")


class Cut(NamedTuple):
    """How a model's layers are cut into stages, evenly.

    Attributes:
        layers: of the model.
        stages: how many.
    """

    layers: int
    stages: int

    def of_stage(self, stage: int) -> range:
        """The layers of a stage."""
        size = self.layers // self.stages
        return range(stage * size, (stage + 1) * size)


def shard(stage: int, rank: int) -> str:
    """What one rank's part of a stage is called in a checkpoint."""
    return f"stage-{stage}/tensor-{rank}"


def read_recut(folder: Path, stage: int, rank: int, cut: Cut, written: Cut) -> dict[str, torch.Tensor]:
    """A stage's state that a checkpoint holds, by the names that the stage has for itself.

    Args:
        folder: of the checkpoint.
        stage: which one is asked for.
        rank: whose part of it.
        cut: into stages, of which this is one.
        written: how the model was cut when the checkpoint was made. What is read may hold more than the stage then.

    Raises:
        RunError: it cannot be read.
    """
    mine = cut.of_stage(stage)
    state: dict[str, torch.Tensor] = {}
    for other in range(written.stages):
        theirs = written.of_stage(other)
        if mine.start < theirs.stop and theirs.start < mine.stop:
            ahead = theirs.start - mine.start
            for name, tensor in read_stage(folder, shard(other, rank)).items():
                state[_LAYER.sub(lambda found: str(int(found[0]) + ahead), name)] = tensor  # noqa: B023 - called at once
    return state
