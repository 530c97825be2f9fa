"""Which gradients the ranks of a server sum, and where."""

from types import SimpleNamespace

import pytest
import torch

from recycle.megatron.shared.stage_training import partial_gradients

NAMES = ("norm", "q_layernorm", "matrix", "frozen")


class Model(torch.nn.Module):
    """Modules that are called as Megatron's; norm is marked as Megatron marks what has seen a part of a sequence."""

    def __init__(self, **settings):
        super().__init__()
        self.config = SimpleNamespace(**{"sequence_parallel": False, "qk_layernorm": False} | settings)
        for name in NAMES:
            self.add_module(name, torch.nn.Linear(2, 2, bias=False))
        self.norm.weight.sequence_parallel = True
        self.frozen.weight.sequence_parallel = True
        self.frozen.weight.requires_grad = False


class OtherRank:
    """A group with one more rank, whose gradients are ten times as large."""

    def sum(self, tensor):
        tensor.mul_(11)


@pytest.mark.parametrize("place", ["grad", "main_grad"])
@pytest.mark.parametrize(
    ("settings", "ranks", "summed"),
    [
        ({}, 2, set()),
        ({"sequence_parallel": True}, 2, {"norm"}),
        ({"qk_layernorm": True}, 2, {"q_layernorm"}),
        ({"sequence_parallel": True, "qk_layernorm": True}, 2, {"norm", "q_layernorm"}),
        ({"sequence_parallel": True, "qk_layernorm": True}, 1, set()),
    ],
)
def test_what_each_rank_has_a_part_of_is_summed_once_and_nothing_else(place, settings, ranks, summed):
    model = Model(**settings)
    for number, name in enumerate(NAMES, 1):
        setattr(model.get_submodule(name).weight, place, torch.full((2, 2), float(number)))
    parts = partial_gradients([model], SimpleNamespace(rank=SimpleNamespace(size=ranks), ranks=OtherRank()))
    assert (parts is not None) == bool(summed)
    if parts is not None:
        parts()
    for number, name in enumerate(NAMES, 1):
        gradient = getattr(model.get_submodule(name).weight, place)
        assert gradient.tolist() == [[number * (11.0 if name in summed else 1.0)] * 2] * 2, name
