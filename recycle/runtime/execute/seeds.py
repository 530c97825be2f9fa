"""Random numbers that depend on what is computed, and not on where or when."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from recycle.runtime.device import restore_generators, seed_generators, state_of_generators
from recycle.runtime.execute.stage import MicroBatch


def seed_of(seed: int, micro_batch: MicroBatch, stage: int) -> int:
    """A seed for the random choices of one micro-batch at one stage, dropout above all."""
    name = f"{seed} {micro_batch.step} {micro_batch.home} {micro_batch.number} {stage}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a seed for the length of a block; what was drawn from before goes on after it."""
    states = state_of_generators()
    seed_generators(seed)
    try:
        yield
    finally:
        restore_generators(states)
