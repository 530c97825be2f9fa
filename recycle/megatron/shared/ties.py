"""Tied embeddings: the first and the last stage each hold the word embedding, and train it as one."""

from collections.abc import Sequence

import torch
from megatron.core.utils import get_attr_wrapped_model

from recycle.runtime.net.network import Alone, Group, Network


class Tie:
    """Keeps the embedding of the first stage and the head of the last one equal.

    Once a stage's gradients are reduced, all its live servers hold the same. So one server of each stage puts in its
    gradient, all others put in nothing, and every live server of both stages gets the sum, whoever its partner was.
    A server that holds both stages needs nobody for that.

    Args:
        weights: the embedding's parameter, the head's, or both: those that are here.
        network: of the server.
        first: the place, in their pipelines, of the servers that hold the first stage.
        last: that of those that hold the last one.
    """

    def __init__(self, weights: Sequence[torch.nn.Parameter], network: Network, first: int, last: int) -> None:
        holders, others = network.view.peers(first), network.view.peers(last)
        self._weight, *self._copies = weights
        self._group: Group = Alone() if first == last else network.group("tie", [*holders, *others])
        self._first = first == last or network.server == holders[0]
        self._represents = self._first or network.server == others[0]

    def copy_from_first(self) -> None:
        """Give every server the first stage's parameter."""
        if not self._first:
            self._weight.data.zero_()
        self._group.sum(self._weight.data)
        for copy in self._copies:
            copy.data.copy_(self._weight.data)

    def reduce(self) -> None:
        """Give every server the gradient of both uses."""
        gradient = _gradient(self._weight)
        if not self._represents:
            gradient.zero_()
        for copy in self._copies:
            gradient.add_(_gradient(copy))
        self._group.sum(gradient)
        for copy in self._copies:
            _gradient(copy).copy_(gradient)


def tie_of(models: Sequence[torch.nn.Module], network: Network, first: int, last: int) -> Tie | None:
    """The tie of a server's stages; None if they have none.

    Args:
        models: the chunks of the model that the server holds, rising.
        network: of the server.
        first: the place, in their pipelines, of the servers that hold the first stage.
        last: that of those that hold the last one.

    Raises:
        ConnectionLost: somebody did not come.
    """
    ends = [model for model, place in ((models[0], first), (models[-1], last)) if network.server.stage == place]
    tied = get_attr_wrapped_model(models[0], "share_embeddings_and_output_weights")
    # Where one stage is the whole model, it uses one parameter twice.
    if not tied or not ends or (first == last and len(models) == 1):
        return None
    weights = [get_attr_wrapped_model(each, "shared_embedding_or_output_weight")() for each in ends]
    return Tie(weights, network, first, last)


def _gradient(weight: torch.nn.Parameter) -> torch.Tensor:
    gradient: torch.Tensor | None = getattr(weight, "main_grad", weight.grad)
    assert gradient is not None
    return gradient
