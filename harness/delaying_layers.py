"""Layers that can leave their weight gradients, as those of Transformer Engine do, which need a GPU.

As its releases from 2.3 on do, they write over ``grad`` and leave a bias that has one alone. As those up to 2.19 do,
they take for granted that the product has the gradient of any other. As the newest do, they ask in the forward pass and
in the backward pass whether they are to leave any.
"""

import queue
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

GARBAGE = 1e9
"""What is in gradients that a layer has added to ``main_grad`` itself."""


class Store:
    """It stands in for Transformer Engine's WeightGradStore.

    Attributes:
        context: what was left; None in layers that were made to leave nothing.
        enabled: whether layers leave anything.
    """

    def __init__(self) -> None:
        self.context: queue.Queue[Any] | None = None
        self.enabled = False

    def delay_wgrad_compute(self) -> bool:
        return self.enabled

    def put(self, tensors: Sequence[torch.Tensor], product: Callable[..., Any]) -> None:
        assert self.enabled
        assert self.context is not None
        self.context.put([tensors, product])

    def pop(self) -> Any:
        assert self.enabled
        assert self.context is not None
        tensors, product = self.context.get(block=False)
        return product(*tensors)


class Product(torch.autograd.Function):
    """It may leave its weight's gradient, and its bias's with it unless that comes from elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, store: Store, how: "How"
    ) -> torch.Tensor:
        ctx.save_for_backward(source, weight)
        ctx.store, ctx.how, ctx.has_bias = store if store.delay_wgrad_compute() else None, how, bias is not None
        output = source @ weight.t()
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        source, weight = ctx.saved_tensors
        (gradient,) = gradients
        how, in_product = ctx.how, ctx.has_bias and not ctx.how.elsewhere

        def product(source: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
            rows, out = source.flatten(0, -2), gradient.flatten(0, -2)
            return how.added(weight, out.t() @ rows), out.sum(0) if in_product else None

        made: tuple[torch.Tensor | None, torch.Tensor | None] = None, None
        if ctx.store is not None and ctx.store.delay_wgrad_compute():
            ctx.store.put([source, gradient], product)
        else:
            made = product(source, gradient)
        if ctx.has_bias and how.elsewhere:
            made = made[0], gradient.flatten(0, -2).sum(0)
        return gradient @ weight, *made, None, None


class How(NamedTuple):
    """How a layer computes its gradients.

    Attributes:
        fused: whether it adds those of weights to ``main_grad``.
        elsewhere: whether that of the bias comes in the backward pass.
    """

    fused: bool = False
    elsewhere: bool = False

    def added(self, weight: Any, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient as it is given to autograd."""
        if not self.fused:
            return gradient
        weight.main_grad.add_(gradient)
        weight.grad_added_to_main_grad = True
        return torch.full_like(gradient, GARBAGE)


def apply(
    source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, store: Store, how: How
) -> torch.Tensor:
    """The output of a layer."""
    output: torch.Tensor = Product.apply(source, weight, bias, store, how)  # type: ignore[no-untyped-call]
    return output


class DelayingLinear(torch.nn.Linear):
    """It stands in for Transformer Engine's Linear.

    Args:
        inputs: how wide they are.
        outputs: how wide they are.
        fused: whether it adds weight gradients to ``main_grad``.
    """

    def __init__(self, inputs: int, outputs: int, *, fused: bool = False) -> None:
        super().__init__(inputs, outputs)
        self.wgrad_store = Store()
        self.fuse_wgrad_accumulation = fused
        self.how = How(fused)

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        return apply(source, self.weight, self.bias, self.wgrad_store, self.how)

    def backward_dw(self) -> None:
        self.weight.grad, bias = self.wgrad_store.pop()
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
        self.how = How(elsewhere=elsewhere)

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        source = source + self.layer_norm_bias
        source = apply(source, self.fc1_weight, self.fc1_bias, self.wgrad_store, self.how).tanh()
        return apply(source, self.fc2_weight, self.fc2_bias, self.wgrad_store, How())

    def backward_dw(self) -> None:
        for name in ("fc2", "fc1"):
            weight, bias = self.wgrad_store.pop()
            getattr(self, f"{name}_weight").grad = weight
            if getattr(self, f"{name}_bias").grad is None:
                getattr(self, f"{name}_bias").grad = bias.to(weight.dtype)
