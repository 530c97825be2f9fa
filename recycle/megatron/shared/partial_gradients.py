"""Gradients of which each tensor-parallel rank of a server has a part, though all have the same parameter.

With sequence parallelism a norm, or a bias that is added after a sum, has seen a part of the sequence, and a norm of
queries or keys has always seen the heads of its rank. Megatron sums them over the ranks when it finalizes gradients.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from megatron.core.utils import get_model_config

from recycle.megatron.shared.ties import gradient_of
from recycle.runtime.net.network import Group, Network

OF_HEADS = ("q_layernorm", "k_layernorm")
"""What the modules are called whose parameters have seen the heads of their rank."""


def partial_gradients(models: Iterable[torch.nn.Module], network: Network) -> Callable[[], None] | None:
    """Sums those of a server over its ranks; None where it has one rank, or no such parameter.

    Args:
        models: the chunks that the server holds.
        network: of the server.
    """
    parameters = [each for model in models for each in seen_in_parts(model)] if network.rank.size > 1 else []
    return partial(sum_over, network.ranks, parameters) if parameters else None


def sum_over(ranks: Group, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Give every rank of a server the whole gradients of some parameters.

    Raises:
        ViewBroken: somebody is gone.
    """
    gradients = [gradient_of(each) for each in parameters]
    together = torch.cat([each.reshape(-1) for each in gradients])
    ranks.sum(together)
    totals = together.split_with_sizes([each.numel() for each in gradients])
    for each, total in zip(gradients, totals, strict=True):
        each.copy_(total.view_as(each))


def seen_in_parts(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """The parameters of a chunk that each tensor-parallel rank has a part of the gradient of."""
    config = get_model_config(model)
    for name, each in model.named_parameters():
        of_sequence = config.sequence_parallel and getattr(each, "sequence_parallel", False)
        of_heads = config.qk_layernorm and any(norm in name for norm in OF_HEADS)
        if each.requires_grad and (of_sequence or of_heads):
            yield each
