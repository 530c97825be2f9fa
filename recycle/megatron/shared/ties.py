"""Tied embeddings: the first and the last stage each hold the word embedding, and train it as one."""

from collections.abc import Callable, Sequence

import torch
from megatron.core.utils import get_attr_wrapped_model

from recycle.job import Server
from recycle.runtime.net.network import Alone, Group, Network

Drop = Callable[[torch.nn.Parameter], None]


class Tie:
    """Keeps the embedding of the first stage and the head of the last one equal.

    Once a stage's gradients are reduced, all its live servers hold the same. So one server of each stage puts in its
    gradient, all others put in nothing, and every live server of both stages gets the sum, whoever its partner was.
    Where the same servers hold both stages, each needs no other, unless the peers have shares of the gradients.

    Args:
        weights: the embedding's parameter, the head's, or both in this order: those that are here.
        network: of the server.
        first: the live servers that hold the first stage.
        last: those that hold the last one.
        drop: if each peer has some shares of a reduced gradient only, sets the others to zero, and those of which it is
            not the first holder.
    """

    def __init__(
        self,
        weights: Sequence[torch.nn.Parameter],
        network: Network,
        first: Sequence[Server],
        last: Sequence[Server],
        drop: Drop | None = None,
    ) -> None:
        # Two parameters are cut at different elements, so a server need not have the same shares of both.
        alone, server = drop is None and set(first) == set(last), network.server
        everybody = [*first, *(each for each in last if each not in first)]
        self._weight, *self._copies = weights
        self._group: Group = Alone() if alone else network.group("tie", everybody)
        self._first = alone or server == first[0]
        represented = [alone or server == each[0] for each in (first, last) if server in each]
        self._drop = drop or _drop_all
        self._dropped = [weight for weight, mine in zip(weights, represented, strict=True) if drop or not mine]

    def copy_from_first(self) -> None:
        """Give every server the first stage's parameter."""
        if not self._first:
            self._weight.data.zero_()
        self._group.sum(self._weight.data)
        for copy in self._copies:
            copy.data.copy_(self._weight.data)

    def reduce(self) -> None:
        """Give every server the gradient of both uses."""
        for weight in self._dropped:
            self._drop(weight)
        gradient = gradient_of(self._weight)
        for copy in self._copies:
            gradient.add_(gradient_of(copy))
        self._group.sum(gradient)
        for copy in self._copies:
            gradient_of(copy).copy_(gradient)


def tie_of(
    models: Sequence[torch.nn.Module],
    network: Network,
    first: Sequence[Server],
    last: Sequence[Server],
    drop: Drop | None = None,
) -> Tie | None:
    """The tie of a server's stages; None if they have none, or do not train it.

    Args:
        models: the chunks of the model that the server holds, rising.
        network: of the server.
        first: the live servers that hold the first stage.
        last: those that hold the last one.
        drop: see Tie.

    Raises:
        ConnectionLost: somebody did not come.
    """
    ends = [model for model, holders in ((models[0], first), (models[-1], last)) if network.server in holders]
    tied = get_attr_wrapped_model(models[0], "share_embeddings_and_output_weights")
    # Where one stage is the whole model, it uses one parameter twice.
    if not tied or not ends or ends == [models[0], models[0]]:
        return None
    weights = [get_attr_wrapped_model(each, "shared_embedding_or_output_weight")() for each in ends]
    if not all(each.requires_grad for each in weights):
        # Frozen ends stay equal.
        return None
    return Tie(weights, network, first, last, drop)


def _drop_all(weight: torch.nn.Parameter) -> None:
    gradient_of(weight).zero_()


def gradient_of(weight: torch.nn.Parameter) -> torch.Tensor:
    """Where the gradient of a parameter is added up: where Megatron looks for it first, too."""
    gradient: torch.Tensor | None = getattr(weight, "main_grad", weight.grad)
    assert gradient is not None
    return gradient
