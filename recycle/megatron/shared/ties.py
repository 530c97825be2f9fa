"""Tied embeddings: the first and the last stage each hold the word embedding, and train it as one."""

import torch
from megatron.core.utils import get_attr_wrapped_model

from recycle.runtime.net.network import Network


class Tie:
    """Keeps the embedding of the first stage and the head of the last one equal.

    Once a stage's gradients are reduced, all its live servers hold the same. So one server of each stage puts in its
    gradient, all others put in nothing, and every live server of both stages gets the sum, whoever its partner was.

    Args:
        weight: the embedding's or the head's parameter here.
        network: of the server, whose stage is the first or the last.
        depth: P.
    """

    def __init__(self, weight: torch.nn.Parameter, network: Network, depth: int) -> None:
        first, last = network.view.peers(0), network.view.peers(depth - 1)
        self._weight = weight
        self._group = network.group("tie", [*first, *last])
        self._first = network.server == first[0]
        self._represents = self._first or network.server == last[0]

    def copy_from_first(self) -> None:
        """Give every server the first stage's parameter."""
        if not self._first:
            self._weight.data.zero_()
        self._group.sum(self._weight.data)

    def reduce(self) -> None:
        """Give every server the gradient of both uses."""
        gradient = getattr(self._weight, "main_grad", self._weight.grad)
        assert gradient is not None
        if not self._represents:
            gradient.zero_()
        self._group.sum(gradient)


def tie_of(model: torch.nn.Module, network: Network, depth: int) -> Tie | None:
    """The tie of a stage; None if it has none.

    Args:
        model: the stage's chunk of the model.
        network: of the server.
        depth: P.

    Raises:
        ConnectionLost: somebody did not come.
    """
    tied = get_attr_wrapped_model(model, "share_embeddings_and_output_weights")
    if not tied or depth == 1 or network.server.stage not in (0, depth - 1):
        return None
    return Tie(get_attr_wrapped_model(model, "shared_embedding_or_output_weight")(), network, depth)
