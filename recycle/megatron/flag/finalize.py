"""The end of an iteration in Megatron's terms; the optimizer is the training code's."""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from recycle.megatron.ties import tie_of
from recycle.runtime.errors import RunError
from recycle.runtime.execute.stage import Redo
from recycle.runtime.net.network import Network

Tokens = Callable[[], torch.Tensor]


class FinalizedGradients:
    """What is the same however gradients are finalized: the optimizer is not stepped here.

    Attributes:
        force_all_reduce: what the training code asks for in this iteration.
    """

    waits = False

    def __init__(self) -> None:
        self.force_all_reduce = False

    def collect(self) -> None:
        """Nothing: Megatron's buffers add up by themselves."""

    def validate(self) -> Redo:
        """Nothing: the training code steps its optimizer, and knows."""
        return Redo.NOTHING

    def step(self) -> Redo:
        """Nothing: the training code steps its optimizer when the schedule returns."""
        return Redo.NOTHING


class WholeGradients(FinalizedGradients):
    """Megatron finalizes its gradients itself, which takes every server; those without work have added nothing.

    Args:
        model: the chunk.
        config: its configuration.
        tokens: how many tokens the loss functions counted here.
    """

    def __init__(self, model: torch.nn.Module, config: Any, tokens: Tokens) -> None:
        super().__init__()
        self._model = model
        self._config = config
        self._tokens = tokens

    def reduce(self) -> None:
        """Give every server of the stage the gradient of the whole batch."""
        if self._config.finalize_model_grads_func is None:
            return
        self._config.finalize_model_grads_func(
            [self._model],
            self._tokens() if self._config.calculate_per_token_loss else None,
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
            force_all_reduce=self.force_all_reduce,
        )


class LiveGradients(FinalizedGradients):
    """Where servers are dead, Megatron's groups would hang, so the same is done over the live ones.

    The factors are the same, then come a sum over the peers, the sum of tied embeddings, and the division by the
    number of tokens where the loss is one of tokens.

    Args:
        model: the chunk, in Megatron's DDP.
        config: its configuration.
        tokens: how many tokens the loss functions counted here.
        network: of the server.
        depth: P.

    Raises:
        RunError: the model is not wrapped.
    """

    def __init__(self, model: torch.nn.Module, config: Any, tokens: Tokens, network: Network, depth: int) -> None:
        super().__init__()
        if not hasattr(model, "expert_parallel_buffers"):
            raise RunError("model: with dead servers, gradients are reduced in Megatron's DDP buffers; wrap it in DDP")
        self._model = model
        self._config = config
        self._tokens = tokens
        self._network = network
        self._buffers: list[Any] = getattr(model, "buffers")  # noqa: B009 - DDP's list has the name of a method
        self._tie = tie_of(model, network, depth)

    def reduce(self) -> None:
        """Give every live server of the stage the gradient of the whole batch."""
        for buffer in self._buffers:
            if buffer.gradient_scaling_factor != 1.0:
                buffer.grad_data *= buffer.gradient_scaling_factor
            self._network.peers.sum(buffer.grad_data)
        if self._tie is not None:
            self._tie.reduce()
        if self._config.calculate_per_token_loss:
            tokens = self._tokens().to(torch.float64)
            self._network.all.sum(tokens)
            for buffer in self._buffers:
                buffer.scale_gradients(1.0 / tokens.item())
