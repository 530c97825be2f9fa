"""How gradients become steps."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from recycle.runtime.step.shard_steps import ShardRule


class Method(NamedTuple):
    """How gradients become steps.

    Attributes:
        clip: the largest norm that the gradient of the whole model may have; None for no limit.
        staggered: whether stages step on their own; otherwise all wait for each other before they reduce.
        addends: where sums are exact, the most that each element of a gradient gets in an iteration; 0 where not.
        keep: whether the state before the last step is kept, so that the step can be undone.
        prepare: called once before each step with the optimizer and the iteration's number: sets learning rates.
        shards: how the optimizer is cut into shards, of which each peer of a stage holds some; None where all hold all.
    """

    clip: float | None = None
    staggered: bool = False
    addends: int = 0
    keep: bool = False
    prepare: Callable[[torch.optim.Optimizer, int], None] | None = None
    shards: ShardRule | None = None

    @property
    def validated(self) -> bool:
        """Whether something must be known of all stages before a step is surely right."""
        return self.clip is not None or self.addends > 0

    @property
    def guesses(self) -> bool:
        """Whether stages may step before that is known: not where all peers must be there to make the step again."""
        return self.validated and self.staggered and self.shards is None
