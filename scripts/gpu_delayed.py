"""The part of ``scripts/gpu-check`` that splits the backward pass of Transformer Engine's layers themselves."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from recycle.megatron.shared.delayed_weights import DelayedModules
from recycle.runtime.device import take_device
from recycle.runtime.step.main_parameters import MainParameters

WIDTH, ROWS, MICRO_BATCHES, EXPERTS = 64, 32, 3, 2
"""Multiples of what products in fp8 need, with as many rows for each expert."""

ORDERS = (0, 1, 2), (2, 0, 1)
"""In which W come; I come as the micro-batches do."""

ROUNDING = 8, 9
"""The capability of GPUs from which on they have products in fp8."""


class Way(NamedTuple):
    """How layers compute.

    Attributes:
        name: for people.
        precision: of parameters.
        fused: whether they add weight gradients to ``main_grad`` themselves.
        rounded: whether they compute in fp8.
        tolerance: how far a gradient may be from that of a whole backward pass, as a part of the largest.
    """

    name: str
    precision: torch.dtype
    fused: bool
    rounded: bool
    tolerance: float


class Layer(NamedTuple):
    """Which layer, and how its bias is added.

    Attributes:
        kind: by its name in Transformer Engine.
        bias: "inside" of it, "outside", as Megatron adds those of projections, or "none".
    """

    kind: str
    bias: str = "inside"

    def __str__(self) -> str:
        return self.kind if self.bias == "inside" else f"{self.kind} (bias {self.bias})"


LAYERS = (
    *(Layer(kind, bias) for kind in ("Linear", "LayerNormLinear") for bias in ("inside", "outside", "none")),
    Layer("LayerNormMLP"),
    Layer("LayerNormMLP", "none"),
    Layer("GroupedLinear", "none"),
)


def compare_delayed() -> str:
    """Transformer Engine's layers: weight gradients that were left, in other orders, against those at once.

    Raises:
        RuntimeError: some are not the same; it says of which layers, and how they computed.
    """
    device = take_device("cuda", 0)
    found, failed = [], []
    for way in _ways():
        worst = 0.0
        for layer in LAYERS:
            # Experts leave weight gradients only where they add them up themselves; their splits are not rounded here.
            if layer.kind == "GroupedLinear" and (way.rounded or not way.fused):
                continue
            try:
                worst = max(worst, _difference(layer, way, device))
            except Exception as error:
                failed.append(f"{layer}, {way.name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        found.append(f"{way.name} {worst:.1e}")
    if failed:
        raise RuntimeError("; ".join(failed))
    return f"split at most so far from fused, of the largest: {', '.join(found)}"


def _ways() -> Iterator[Way]:
    yield Way("float32", torch.float32, False, False, 1e-3)
    yield Way("bfloat16", torch.bfloat16, False, False, 1e-2)
    yield Way("added up by layers", torch.bfloat16, True, False, 1e-2)
    if torch.cuda.get_device_capability() >= ROUNDING:
        yield Way("fp8", torch.bfloat16, False, True, 1e-2)
        yield Way("fp8 added up by layers", torch.bfloat16, True, True, 1e-2)


class _Trained:
    """A layer and its gradients.

    Args:
        layer: which.
        way: how it computes.
        device: where.
    """

    def __init__(self, layer: Layer, way: Way, device: torch.device) -> None:
        import transformer_engine.pytorch as engine

        torch.manual_seed(0)
        sizes = {"LayerNormMLP": (WIDTH, 2 * WIDTH), "GroupedLinear": (EXPERTS, WIDTH, WIDTH)}
        # Only some kinds know the name.
        outside = {"return_bias": True} if layer.bias == "outside" else {}
        self.tolerance = way.tolerance
        self._way, self._experts = way, layer.kind == "GroupedLinear"
        self.module: torch.nn.Module = getattr(engine, layer.kind)(
            *sizes.get(layer.kind, (WIDTH, WIDTH)),
            bias=layer.bias != "none",
            fuse_wgrad_accumulation=way.fused,
            params_dtype=way.precision,
            device=device,
            **outside,
        )
        self._main = MainParameters(self.module.parameters())
        self.begin()

    def begin(self) -> None:
        """Begin with gradients of zero."""
        self.gradients = [torch.zeros_like(each) for each in self._main]
        self._main.use(self.gradients)

    def backward(self, rows: torch.Tensor) -> torch.Tensor:
        """A forward and a backward pass; gives the gradient of the input."""
        source = rows.to(self._way.precision).requires_grad_()
        splits = [[len(source) // EXPERTS] * EXPERTS] if self._experts else []
        with _rounding() if self._way.rounded else nullcontext():
            made = self.module(source, *splits)
        output = made[0] + made[1] if isinstance(made, tuple) else made
        output.float().square().mean().backward()
        assert source.grad is not None
        return source.grad

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The gradients by the names of their parameters."""
        names = [name for name, _ in self.module.named_parameters()]
        return zip(names, self.gradients, strict=True)


def _rounding() -> AbstractContextManager[Any]:
    import transformer_engine.pytorch as engine
    from transformer_engine.common.recipe import Float8CurrentScaling

    rounding: AbstractContextManager[Any]
    if hasattr(engine, "autocast"):
        rounding = engine.autocast(enabled=True, recipe=Float8CurrentScaling())
    else:
        rounding = engine.fp8_autocast(enabled=True, fp8_recipe=Float8CurrentScaling())
    return rounding


def _difference(layer: Layer, way: Way, device: torch.device) -> float:
    """Between a layer that leaves weight gradients and one that does not, as a part of the largest.

    Args:
        layer: which.
        way: how it computes.
        device: where.
    """
    whole, parts = _Trained(layer, way, device), _Trained(layer, way, device)
    for one, other in zip(whole.module.parameters(), parts.module.parameters(), strict=True):
        other.data.copy_(one)
    modules = DelayedModules(parts.module)
    batches = [_rows(number, device) for number in range(MICRO_BATCHES + 1)]
    # What was left of a micro-batch that is made again is forgotten, with all gradients.
    parts.backward(batches.pop())
    if not modules.take():
        raise RuntimeError("nothing was left for W")
    return max(_in_order(whole, parts, modules, batches, order) for order in ORDERS)


def _in_order(
    whole: _Trained, parts: _Trained, modules: DelayedModules, batches: Sequence[torch.Tensor], order: Sequence[int]
) -> float:
    whole.begin()
    parts.begin()
    left = []
    worst = 0.0
    for rows in batches:
        expected, found = whole.backward(rows), parts.backward(rows)
        worst = max(worst, _apart("the input", found, expected, parts))
        left.append(modules.take())
    for place in order:
        modules.compute(left[place])
    for (name, expected), (_, found) in zip(whole.named(), parts.named(), strict=True):
        worst = max(worst, _apart(f"{name}, W in the order {order},", found, expected, parts))
    return worst


def _apart(name: str, found: torch.Tensor, expected: torch.Tensor, trained: _Trained) -> float:
    largest = float(expected.float().abs().max())
    apart = float((found.float() - expected.float()).abs().max()) / (largest or 1.0)
    # What is no number is not at most anything.
    if not (largest and apart <= trained.tolerance):
        raise RuntimeError(f"the gradient of {name} is {apart:.1e} of the largest, {largest:.1e}, from that at once")
    return apart


def _rows(number: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return (torch.rand(ROWS, WIDTH, generator=generator) - 0.5).to(device)
