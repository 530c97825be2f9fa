"""The comparison of Transformer Engine's layers that scripts/gpu-check makes, with layers that stand in for them."""

import sys
from types import SimpleNamespace

import pytest
import torch

from harness.delaying_layers import DelayingLinear
from scripts import gpu_delayed
from scripts.gpu_delayed import Layer, Way, compare_delayed


class Linear(DelayingLinear):
    """It takes what Transformer Engine's takes."""

    def __init__(
        self,
        inputs,
        outputs,
        bias=True,
        fuse_wgrad_accumulation=False,
        params_dtype=None,
        return_bias=False,
        device="cuda",
    ):
        super().__init__(inputs, outputs, fused=fuse_wgrad_accumulation)
        self.to(params_dtype)


class WrongLinear(Linear):
    """Its delayed products are those of other inputs."""

    def backward_dw(self):
        (source, gradient), compute = self.wgrad_store.context.get()
        self.wgrad_store.put([source + 1, gradient], compute)
        super().backward_dw()


@pytest.fixture
def engine(monkeypatch):
    found = SimpleNamespace(Linear=Linear)
    monkeypatch.setitem(sys.modules, "transformer_engine", SimpleNamespace(pytorch=found))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", found)
    monkeypatch.setattr(gpu_delayed, "take_device", lambda *_: torch.device("cpu"))
    ways = (Way(str(each), each, False, False, 1e-2) for each in (torch.float32, torch.bfloat16))
    monkeypatch.setattr(gpu_delayed, "_ways", lambda: ways)
    monkeypatch.setattr(gpu_delayed, "LAYERS", (Layer("Linear"),))
    return found


def test_what_is_left_is_computed_in_other_orders(engine):
    assert compare_delayed().startswith("split at most so far from fused, of the largest: torch.float32 ")


def test_all_that_differs_is_named(engine):
    engine.Linear = WrongLinear
    with pytest.raises(RuntimeError) as raised:
        compare_delayed()
    first, second = str(raised.value).split("; ")
    assert first.startswith(
        "Linear, torch.float32: RuntimeError: the gradient of weight, W in the order (0, 1, 2), is "
    )
    assert second.startswith("Linear, torch.bfloat16: RuntimeError: the gradient of weight")


def test_a_layer_that_cannot_be_made_is_named(engine, monkeypatch):
    monkeypatch.setattr(gpu_delayed, "LAYERS", (Layer("Linear"), Layer("LayerNormMLP")))
    with pytest.raises(RuntimeError, match=r"^LayerNormMLP, torch.float32: AttributeError: .*; LayerNormMLP, torch.bf"):
        compare_delayed()
