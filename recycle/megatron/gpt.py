"""What turns a GPT and a text into training: the forward step, and the loss of a micro-batch."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

Batch = tuple[torch.Tensor, torch.Tensor]


def forward_step(data_iterator: Iterator[Batch], model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
    """Megatron's ``forward_step_func`` for (tokens, labels), each (micro-batch size, sequence).

    Labels below 0 are not counted.
    """
    tokens, labels = next(data_iterator)
    positions = torch.arange(tokens.size(1)).expand_as(tokens)
    mask = torch.ones(tokens.size(1), tokens.size(1)).tril().logical_not().view(1, 1, *[tokens.size(1)] * 2)
    return model(tokens, positions, mask, labels=labels.clamp(min=0)), partial(token_loss, labels >= 0)


def token_loss(counted: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """The sum over the tokens that count, their number, and what is reported: their mean.

    Megatron divides by the number in the micro-batch and then by that of micro-batches, or by the number in the whole
    batch once all gradients are added up.
    """
    total = (losses.float() * counted).sum()
    tokens = counted.sum(dtype=torch.int)
    return total, tokens, {"lm loss": total.detach() / tokens.clamp(min=1)}
