"""The backward split of Transformer Engine's modules, by their own means.

Each module has a store. While the store is on, a backward pass leaves weight gradients in it, and ``backward_dw``
computes what was left first. While it is off, they are computed at once. Megatron makes modules with stores that are
off: it allows ``delay_wgrad_compute`` only if experts' communication is overlapped. So stores are switched on here,
when the model is there.

What is left is taken out of the stores right after the backward pass, and is its micro-batch's from then on: weight
gradients can be computed in any order, and dropped. Until then it holds the inputs of the products and the gradients of
their outputs, as they were gathered over ranks and rounded, while all else of the graph is free. So nothing is
communicated when it is computed.

Gradients of biases come with the products, or in the backward pass already: where they are rounded, where the bias is
added outside of the module, or where an activation's gradient has it. Only the product shows which.
"""

import queue
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

CACHE = "disable_parameter_transpose_cache"
"""The attribute with which Megatron's wrappers do not tell Transformer Engine of the first micro-batch."""

DELAYS = "2.3.0"
"""The release from which layers leave weight gradients."""

DEBUG_STATE = "transformer_engine.debug.pytorch.debug_state"
"""Where Transformer Engine keeps whether its layers are debugged, from when the first of them is made."""

FACTORS = 2
"""Of a product: its input and the gradient of its output, which come before all else that is kept for it."""


class Delayed(NamedTuple):
    """What one module has left of one backward pass: for each product its tensors, and what computes it."""

    module: Any
    entries: Sequence[Any]

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """What it holds: inputs and gradients of outputs, and of a rounded tensor what that is made of.

        Where experts say as well where their products go, that is ``main_grad``, which is there anyway.
        """
        return (each for kept, _ in self.entries for whole in kept[:FACTORS] for each in _parts(whole))


def add_up_always(model: torch.nn.Module) -> None:
    """Have layers add up all weight gradients of a step, whichever comes first.

    Layers that add to ``main_grad`` themselves write over it with that of the micro-batch which they were told is the
    first. Here another one's may have been added by then: who was first in the forward pass need not be in W.
    """
    for each in model.modules():
        if getattr(each, "fuse_wgrad_accumulation", False) and hasattr(each, CACHE):
            setattr(each, CACHE, True)


class DelayedModules:
    """The modules of a stage that leave weight gradients.

    Some cannot, and compute them at once: modules with a weight that several modules use, experts that do not add up
    gradients in ``main_grad``, modules that overlap products with communication, and all modules that are debugged.

    Args:
        model: of the stage.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        users = Counter(id(own) for each in model.modules() for own in each.parameters(recurse=False))
        self._modules: list[Any] = [each for each in model.modules() if _can_leave(each, users)]
        for each in self._modules:
            if each.wgrad_store.context is None:
                each.wgrad_store.context = queue.Queue()
        self._switch(on=True)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within the block, a backward pass computes weight gradients as other layers do."""
        self._switch(on=False)
        try:
            yield
        finally:
            self._switch(on=True)

    def take(self) -> list[Delayed]:
        """What the last backward pass has left; the stores are empty then."""
        queues = [(each, each.wgrad_store.context) for each in self._modules]
        return [Delayed(each, [left.get() for _ in range(left.qsize())]) for each, left in queues if left.qsize()]

    @staticmethod
    def compute(left: Sequence[Delayed]) -> None:
        """Compute what was left, and add it to ``main_grad`` where there is one, to ``grad`` otherwise.

        Args:
            left: by modules; the last one comes first, as in a backward pass.
        """
        with torch.no_grad():
            for module, entries in reversed(left):
                # Told no earlier: fused operations that are made of experts would leave products that nobody takes.
                for asked in (module, getattr(module, "config", module)):
                    if hasattr(asked, "delay_wgrad_compute"):
                        asked.delay_wgrad_compute = True
                # A module that was used several times has left as much each time.
                products = 2 if hasattr(module, "fc2_weight") else 1
                for first in range(0, len(entries), products):
                    _compute(module, entries[first : first + products])

    def _switch(self, *, on: bool) -> None:
        for each in self._modules:
            each.wgrad_store.enabled = on


def _compute(module: Any, entries: Sequence[Any]) -> None:
    """Compute what one use of a module has left."""
    with _adding(module) as elsewhere:
        for (tensors, product), biases in zip(entries, _biases(module, len(entries)), strict=True):
            module.wgrad_store.context.put([tensors, _noting(elsewhere, biases, product)])
        module.backward_dw()
    assert module.wgrad_store.context.empty(), f"{type(module).__name__} has not computed all that it left"


def _can_leave(module: Any, users: Mapping[int, int]) -> bool:
    """Whether a module has a store, and can leave all its weight gradients there.

    Args:
        module: which.
        users: how many modules have each parameter.
    """
    if getattr(module, "wgrad_store", None) is None or not hasattr(module, "backward_dw"):
        return False
    if getattr(module, "ub_bulk_wgrad", False) or any(users[id(each)] > 1 for each in module.parameters(recurse=False)):
        # A part of the gradient of a weight with two users would be lost.
        return False
    # Since 2.8, the backward pass gives autograd the memory for the products of experts before they are computed.
    adds_up = not hasattr(module, "num_gemms") or bool(module.fuse_wgrad_accumulation)
    state = sys.modules.get(DEBUG_STATE)
    return adds_up and not (state is not None and state.TEDebugState.debug_enabled)


def _parts(kept: Any) -> Iterator[torch.Tensor]:
    rounded = getattr(kept, "get_data_tensors", None)
    if rounded is not None:
        kept = rounded()
    if isinstance(kept, torch.Tensor):
        yield kept
    elif isinstance(kept, (list, tuple)):
        # Those of several experts, or of both ways in which a tensor was rounded.
        for each in kept:
            yield from _parts(each)


def _biases(module: Any, products: int) -> Iterator[Sequence[torch.nn.Parameter]]:
    """The biases of a module by the products with which their gradients may come; the last layer's is the first."""
    named = module.named_parameters(recurse=False)
    biases = [each for name, each in named if "bias" in name and not name.startswith("layer_norm")]
    size = len(biases) // products
    return (biases[size * place : size * (place + 1)] for place in reversed(range(products)))


def _noting(
    elsewhere: set[torch.nn.Parameter], biases: Sequence[torch.nn.Parameter], product: Callable[..., Any]
) -> Callable[..., Any]:
    """A product that adds those biases to a set whose gradients do not come with it.

    Modules write the gradient of a bias that has none, whether it came with the product or not.
    """

    def computed(*tensors: Any) -> Any:
        found = product(*tensors)
        gradients = found[1] if isinstance(found[1], list) else [found[1]]
        for bias, gradient in zip(biases, gradients, strict=False):
            if gradient is None or not gradient.numel():
                bias.grad = bias.detach()
                elsewhere.add(bias)
        return found

    return computed


@contextmanager
def _adding(module: Any) -> Iterator[set[torch.nn.Parameter]]:
    """What is written to ``grad`` within the block is added to what was there; modules write over it.

    It gives a set for the parameters of which nothing is to be added.
    """
    elsewhere: set[torch.nn.Parameter] = set()
    own = list(module.parameters(recurse=False))
    before = [each.grad for each in own]
    for each in own:
        each.grad = None
    yield elsewhere
    # Fused products add to main_grad themselves, and leave nothing of use in grad.
    if getattr(module, "fuse_wgrad_accumulation", False):
        elsewhere.update(each for each in own if each.dim() > 1)
    for parameter, gradient in zip(own, before, strict=True):
        added = None if parameter in elsewhere else parameter.grad
        main = getattr(parameter, "main_grad", None)
        target = gradient if main is None else main
        if added is not None and target is not None:
            target.add_(added)
        parameter.grad = added if target is None else gradient
