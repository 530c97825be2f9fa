"""Megatron's indexed datasets: tokens in a ``.bin`` file, and where its sequences are in an ``.idx`` file beside it."""

import hashlib
from pathlib import Path
from typing import Any

import numpy
import numpy.typing
from megatron.core.datasets.indexed_dataset import _IndexReader

from recycle.runtime.errors import RunError
from recycle.runtime.text_file import dataset_files

Tokens = numpy.typing.NDArray[Any]


def load_indexed(path: Path) -> tuple[Tokens, str]:
    """All tokens of a dataset in their order, read from disk as they are used, and a fingerprint.

    Raises:
        RunError: a file is missing, or the two do not fit together.
    """
    index, tokens = dataset_files(path)
    try:
        reader = _IndexReader(str(index), multimodal=False)
        kind = numpy.dtype(reader.dtype)
        lengths = numpy.array(reader.sequence_lengths, dtype=numpy.int64)
    except Exception as error:  # Megatron checks with assertions, and numpy has errors of its own
        raise RunError(f"text: {index} is damaged: {_first_line(error)}; make the dataset again") from error
    expected, found = int(lengths.sum()) * kind.itemsize, tokens.stat().st_size
    if (lengths < 0).any() or expected != found:
        raise RunError(
            f"text: {tokens} has {found} bytes, and {index.name} says {expected}: the two are not of one dataset, or "
            "one is damaged; make the dataset again"
        )
    fingerprint = hashlib.blake2b(index.read_bytes(), digest_size=8).hexdigest()
    return numpy.memmap(tokens, dtype=kind, mode="r"), fingerprint


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
