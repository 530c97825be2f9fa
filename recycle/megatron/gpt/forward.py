"""What turns a GPT and a text into training: the forward step, and the loss of a micro-batch."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.text import VOCABULARY, Batch, ByteText, standard_library
from recycle.runtime.device import device_copy
from recycle.runtime.errors import RunError
from recycle.runtime.text_file import read_text


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


def load_text(path: Path | None, options: ModelOptions) -> ByteText:
    """The text that a model is trained on: a file, or Python's standard library.

    Raises:
        RunError: it cannot be read, is no file, is too short, or the model's vocabulary is.
    """
    content = standard_library() if path is None else read_text(path)
    if options.vocabulary < VOCABULARY:
        raise RunError(f"vocabulary is {options.vocabulary}: text is read as bytes, which need {VOCABULARY}")
    source = "Python's standard library" if path is None else str(path)
    return ByteText(content, source, options.sequence, options.micro_batch_size, options.seed)
