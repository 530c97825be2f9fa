"""Real text on every machine: the sources of Python's standard library, as bytes, addressable by micro-batch."""

import hashlib
import sysconfig
from pathlib import Path

import torch

from recycle.runtime.errors import RunError
from recycle.runtime.seeds import seed_of
from recycle.runtime.stage import MicroBatch

VOCABULARY = 256
VALIDATION_SHARE = 0.05
TRAINING, VALIDATION = 0, 1


def standard_library() -> bytes:
    """The sources of this Python's standard library, one module after the other."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


class ByteText:
    """A text as byte tokens; any server finds the samples of any micro-batch by its three numbers.

    Args:
        content: the text. Its last twentieth is kept for validation.
        source: what to call it in errors.
        sequence: tokens in a sample.
        micro_batch_size: samples in a micro-batch.
        seed: of the choice of samples.

    Raises:
        RunError: the text is too short for one sample in each part.
    """

    def __init__(self, content: bytes, source: str, sequence: int, micro_batch_size: int, seed: int) -> None:
        cut = int(len(content) * (1 - VALIDATION_SHARE))
        least = min(cut, len(content) - cut)
        if least <= sequence:
            raise RunError(
                f"data: {source} has {len(content)} bytes, of which {len(content) - cut} are for validation, and a "
                f"sample takes {sequence + 1}: give a longer text or a shorter sequence"
            )
        self.fingerprint = hashlib.blake2b(content, digest_size=8).hexdigest()
        tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._parts = (tokens[:cut], tokens[cut:])
        self._sequence = sequence
        self._size = micro_batch_size
        self._seed = seed

    def samples(self, micro_batch: MicroBatch, part: int = TRAINING) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and the tokens that follow them, each (micro-batch size, sequence), int64."""
        tokens = self._parts[part]
        generator = torch.Generator().manual_seed(seed_of(self._seed, micro_batch, part))
        starts = torch.randint(len(tokens) - self._sequence, (self._size,), generator=generator).tolist()
        rows = torch.stack([tokens[start : start + self._sequence + 1] for start in starts]).long()
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
