"""What turns a GPT and a text into training: the forward step, and the loss of a micro-batch."""

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import numpy.typing
import torch
from megatron.core.datasets.indexed_dataset import _IndexReader

from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.text import VOCABULARY, Batch, ByteText, TokenText, standard_library
from recycle.runtime.device import device_copy
from recycle.runtime.errors import RunError
from recycle.runtime.text_file import dataset_files, is_indexed, read_text

Tokens = numpy.typing.NDArray[Any]


def forward_step(data_iterator: Iterator[Batch], model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
    """Megatron's ``forward_step_func`` for (tokens, labels), each (micro-batch size, sequence).

    Labels below 0 are not counted.
    """
    device = next(model.parameters()).device
    tokens, labels = (device_copy(each, device) for each in next(data_iterator))
    positions = torch.arange(tokens.size(1), device=device).expand_as(tokens)
    mask = (
        torch.ones(tokens.size(1), tokens.size(1), device=device).tril().logical_not().view(1, 1, *[tokens.size(1)] * 2)
    )
    return model(tokens, positions, mask, labels=labels.clamp(min=0)), partial(token_loss, labels >= 0)


def token_loss(counted: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """The sum over the tokens that count, their number, and what is reported: their mean.

    Megatron divides by the number in the micro-batch and then by that of micro-batches, or by the number in the whole
    batch once all gradients are added up.
    """
    total = (losses.float() * counted).sum()
    tokens = counted.sum(dtype=torch.int)
    return total, tokens, {"lm loss": total.detach() / tokens.clamp(min=1)}


def load_text(path: Path | None, options: ModelOptions) -> TokenText:
    """The text that a model is trained on: a file, a dataset of Megatron's, or Python's standard library.

    Raises:
        RunError: it cannot be read, is no file, is too short, or the model's vocabulary is.
    """
    size = options.sequence, options.micro_batch_size, options.seed
    if path is not None and is_indexed(path):
        tokens, fingerprint = load_indexed(path)
        return TokenText(tokens, fingerprint, str(path), *size, options.vocabulary)
    if path is None:
        content, source = standard_library(), "Python's standard library"
    else:
        content, source = read_text(path), str(path)
    if options.vocabulary < VOCABULARY:
        raise RunError(f"vocabulary is {options.vocabulary}: text is read as bytes, which need {VOCABULARY}")
    return ByteText(content, source, *size)


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
