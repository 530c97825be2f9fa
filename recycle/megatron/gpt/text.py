"""Text to train on, addressable by micro-batch; on every machine, the sources of Python's standard library."""

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch

from recycle.runtime.errors import RunError
from recycle.runtime.execute.seeds import seed_of
from recycle.runtime.execute.stage import MicroBatch

VOCABULARY = 256
VALIDATION_SHARE = 0.05
TRAINING, VALIDATION = 0, 1

Batch = tuple[torch.Tensor, torch.Tensor]
"""Tokens and the tokens that follow them, each (micro-batch size, sequence), int64."""


def standard_library() -> bytes:
    """The sources of this Python's standard library, one module after the other."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


class ByteText:
    """A text whose tokens are its bytes; any server finds the samples of any micro-batch by its three numbers.

    Args:
        content: the text. The last twentieth is kept for validation.
        source: what to call it in errors.
        sequence: tokens in a sample.
        micro_batch_size: samples in a micro-batch.
        seed: of the choice of samples.

    Attributes:
        fingerprint: tells texts apart.

    Raises:
        RunError: the text is too short for one sample in each part.
    """

    def __init__(self, content: bytes, source: str, sequence: int, micro_batch_size: int, seed: int) -> None:
        tokens = numpy.frombuffer(content, dtype=numpy.uint8)
        cut = int(len(tokens) * (1 - VALIDATION_SHARE))
        least = min(cut, len(tokens) - cut)
        if least <= sequence:
            raise RunError(
                f"data: {source} has {len(tokens)} tokens, of which {len(tokens) - cut} are for validation, and a "
                f"sample takes {sequence + 1}: give a longer text or a shorter sequence"
            )
        self.fingerprint = hashlib.blake2b(content, digest_size=8).hexdigest()
        self._parts = (tokens[:cut], tokens[cut:])
        self._sequence = sequence
        self._size = micro_batch_size
        self._seed = seed

    def training(self, micro_batch: MicroBatch) -> Iterator[Batch]:
        """See Data."""
        return iter([self.samples(micro_batch)])

    def held_out(self, micro_batch: MicroBatch) -> Iterator[Batch]:
        """See Data."""
        return iter([self.samples(micro_batch, VALIDATION)])

    def samples(self, micro_batch: MicroBatch, part: int = TRAINING) -> Batch:
        """The data of a micro-batch."""
        tokens = self._parts[part]
        generator = torch.Generator().manual_seed(seed_of(self._seed, micro_batch, part))
        starts = torch.randint(len(tokens) - self._sequence, (self._size,), generator=generator).tolist()
        rows = numpy.stack([tokens[start : start + self._sequence + 1] for start in starts]).astype(numpy.int64)
        both = torch.from_numpy(rows)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()
