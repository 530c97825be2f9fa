"""Layers that leave their weight gradients, as those of Transformer Engine do, which need a GPU.

As its releases from 2.3 on do, they write over ``grad`` and leave a bias that has one alone. As those up to 2.19 do,
they take for granted that the product has the gradient of any other.
"""

import queue
from typing import Any

import torch


class Store:
    """It stands in for Transformer Engine's WeightGradStore."""

    def __init__(self) -> None:
        self.context: queue.Queue[Any] = queue.Queue()

    def delay_wgrad_compute(self) -> bool:
        return True


class Product(torch.autograd.Function):
    """It leaves its weight's gradient, and its bias's with it unless that comes from elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, store: Store, elsewhere: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(source, weight)
        ctx.store, ctx.elsewhere = store, elsewhere
        return source @ weight.t() + bias

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        source, weight = ctx.saved_tensors
        (gradient,) = gradients
        elsewhere = ctx.elsewhere

        def product(source: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
            return gradient.t() @ source, None if elsewhere else gradient.sum(0)

        ctx.store.context.put([[source, gradient], product])
        return gradient @ weight, None, gradient.sum(0) if elsewhere else None, None, None


def apply(
    source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, store: Store, elsewhere: bool = False
) -> torch.Tensor:
    """The output of a layer."""
    output: torch.Tensor = Product.apply(source, weight, bias, store, elsewhere)  # type: ignore[no-untyped-call]
    return output


class DelayingLinear(torch.nn.Linear):
    """It stands in for Transformer Engine's Linear.

    Args:
        inputs: how wide they are.
        outputs: how wide they are.
        fused: whether it adds weight gradients to ``main_grad``.
        elsewhere: whether the gradient of the bias comes in the backward pass.
    """

    def __init__(self, inputs: int, outputs: int, *, fused: bool = False, elsewhere: bool = False) -> None:
        super().__init__(inputs, outputs)
        self.wgrad_store = Store()
        self.fuse_wgrad_accumulation = fused
        self.elsewhere = elsewhere

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        return apply(source, self.weight, self.bias, self.wgrad_store, self.elsewhere)

    def backward_dw(self) -> None:
        tensors, compute = self.wgrad_store.context.get()
        weight, bias = compute(*tensors)
        if self.fuse_wgrad_accumulation:
            self.weight.main_grad.add_(weight)  # type: ignore[attr-defined]
            self.weight.grad = torch.full_like(weight, 1e9)
        else:
            self.weight.grad = weight
        if self.bias.grad is None:
            self.bias.grad = bias.to(self.bias.dtype)


class DelayingLayers(torch.nn.Module):
    """It stands in for Transformer Engine's LayerNormMLP: two products, of which the last layer's is left first.

    Args:
        elsewhere: whether the gradient of the first layer's bias comes in the backward pass.
    """

    def __init__(self, elsewhere: bool = False) -> None:
        super().__init__()
        self.layer_norm_bias = torch.nn.Parameter(torch.zeros(4))
        self.fc1_weight, self.fc1_bias = torch.nn.Linear(4, 3).parameters()
        self.fc2_weight, self.fc2_bias = torch.nn.Linear(3, 3).parameters()
        self.wgrad_store = Store()
        self.elsewhere = elsewhere

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        source = source + self.layer_norm_bias
        source = apply(source, self.fc1_weight, self.fc1_bias, self.wgrad_store, self.elsewhere).tanh()
        return apply(source, self.fc2_weight, self.fc2_bias, self.wgrad_store)

    def backward_dw(self) -> None:
        for name in ("fc2", "fc1"):
            tensors, compute = self.wgrad_store.context.get()
            weight, bias = compute(*tensors)
            getattr(self, f"{name}_weight").grad = weight
            if getattr(self, f"{name}_bias").grad is None:
                getattr(self, f"{name}_bias").grad = bias.to(weight.dtype)
