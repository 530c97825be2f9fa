"""The backward split of Megatron's linear layers: their weight gradients wait in a queue until they are asked for.

Megatron's own linears compute input and weight gradient in one go. Here the backward pass of their autograd function
leaves the weight gradient's two factors in a queue instead, if one is open; the product is the same later as at once,
to the bit. Norms, biases and embeddings are cheap, and their gradients stay where they are.

With sequence parallelism each rank of a server has saved its part of a layer's input, and the product takes the whole.
Megatron gathers it while it computes the input gradient. Here it is gathered when the product is computed: so until
then each rank holds its part only, and nobody who waits for the input gradient waits for that. The ranks of a server
carry out the same list, and so meet there in the same order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from megatron.core.tensor_parallel import layers

from recycle.megatron.shared.patching import replace

Function = layers.LinearWithGradAccumulationAndAsyncCommunication
WHOLE = ("gradient_accumulation_fusion", "grad_output_buffer")
"""Settings with which weight gradients are computed at once."""


class Owed(NamedTuple):
    """The factors of one weight gradient.

    Attributes:
        weight: whose.
        grad_output: (tokens, out).
        input: (tokens, in), or this rank's part of them.
        sharing: the group of the ranks that have a part each, in their order; None where it is the whole.
    """

    weight: torch.nn.Parameter
    grad_output: torch.Tensor
    input: torch.Tensor
    sharing: Any = None


class BackwardHook:
    """What the replaced backward pass looks at; the one piece of state that outlives a call."""

    original: Any = None
    queue: list[Owed] | None = None


@contextmanager
def queued_weight_gradients() -> Iterator[list[Owed]]:
    """Within the block, backward passes leave weight gradients in the list that it gives.

    Those of layers with fused accumulation are computed at once: among Transformer Engine's layers, which split their
    own, that is the head.
    """
    if BackwardHook.original is None:
        BackwardHook.original = replace(Function, "backward", staticmethod(_backward))
    assert BackwardHook.queue is None, "the block is entered a second time"
    BackwardHook.queue = []
    try:
        yield BackwardHook.queue
    finally:
        BackwardHook.queue = None


def add_weight_gradients(queue: list[Owed]) -> None:
    """Compute what is owed, and add it to ``main_grad`` where Megatron keeps one, to ``grad`` otherwise.

    Args:
        queue: what is owed.
    """
    with torch.no_grad():
        for weight, grad_output, source, sharing in queue:
            gradient = grad_output.t().matmul(source if sharing is None else _gathered(source, sharing))
            main = getattr(weight, "main_grad", None)
            target = weight.grad if main is None else main
            if target is None:
                weight.grad = gradient
            else:
                target.add_(gradient)


def _backward(ctx: Any, grad_output: torch.Tensor) -> Any:
    if BackwardHook.queue is None or any(getattr(ctx, setting) for setting in WHOLE):
        return BackwardHook.original(ctx, grad_output)
    source, weight = ctx.saved_tensors
    grad_input = grad_output.matmul(weight)
    reduction = None
    if ctx.allreduce_dgrad:
        reduction = torch.distributed.all_reduce(grad_input, group=ctx.tp_group, async_op=True)
    if ctx.sequence_parallel:
        whole, grad_input = grad_input, torch.empty_like(source, memory_format=torch.contiguous_format)
        reduction = torch.distributed.reduce_scatter_tensor(grad_input, whole, group=ctx.tp_group, async_op=True)
    grad_output, source = layers.prepare_input_tensors_for_wgrad_compute(grad_output, source)
    sharing = ctx.tp_group if ctx.sequence_parallel else None
    BackwardHook.queue.append(Owed(weight, grad_output.detach(), source.detach(), sharing))
    grad_bias = grad_output.sum(dim=0) if ctx.use_bias else None
    if reduction is not None:
        reduction.wait()
    # How many inputs the function has differs between releases.
    return grad_input, None, grad_bias, *[None] * (len(ctx.needs_input_grad) - 3)


def _gathered(part: torch.Tensor, sharing: Any) -> torch.Tensor:
    """The tokens of all ranks of a group, rank by rank."""
    whole = part.new_empty(sharing.size() * len(part), *part.shape[1:])
    torch.distributed.all_gather_into_tensor(whole, part.contiguous(), group=sharing)
    return whole
