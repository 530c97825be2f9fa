"""What turns a GPT and a text into training: the forward step, and the mean loss over a micro-batch."""

from collections.abc import Iterator
from typing import Any

import torch

Batch = tuple[torch.Tensor, torch.Tensor]


def forward_step(data_iterator: Iterator[Batch], model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
    """Megatron's ``forward_step_func`` for (tokens, labels), each (micro-batch size, sequence)."""
    tokens, labels = next(data_iterator)
    positions = torch.arange(tokens.size(1)).expand_as(tokens)
    mask = torch.ones(tokens.size(1), tokens.size(1)).tril().logical_not().view(1, 1, *[tokens.size(1)] * 2)
    return model(tokens, positions, mask, labels=labels), mean_loss


def mean_loss(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The mean over the micro-batch's tokens, and what is reported of it."""
    loss = losses.float().mean()
    return loss, {"lm loss": loss.detach().clone()}
