"""Splitting the backward pass of a torch module: the same gradients, or a reason why not."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from recycle.runtime.execute.stage import MicroBatch, TensorSpec
from scripts.plain_torch import Boundary, TorchStage, boundaries, cut
from tests.runtime.models import ROWS, WIDTH, inputs, layers, targets

SPEC = TensorSpec((ROWS, WIDTH), torch.float32)
PLACES = {"first": (None, SPEC), "middle": (SPEC, SPEC), "last": (SPEC, None)}


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        return checkpoint(self.inner, value, use_reentrant=True)


def stage(module, place):
    number = list(PLACES).index(place)
    return TorchStage(module, number, Boundary(*PLACES[place]), inputs, targets, torch.nn.functional.mse_loss, 0.25)


def run(one, split):
    gradients = []
    for number in range(3):
        micro_batch = MicroBatch(0, 1, number)
        torch.manual_seed(number)
        received = torch.randn(SPEC.shape) if one.input else None
        sent = one.forward(micro_batch, received)
        assert (sent is None) == (one.output is None)
        back = torch.randn(SPEC.shape) if one.output else None
        if not split:
            gradients.append(one.backward(micro_batch, back))
            continue
        assert one.held() == (1, 0)
        gradients.append(one.input_gradient(micro_batch, back))
        assert one.held() == (0, 1)
        one.weight_gradient(micro_batch)
        assert one.held() == (0, 0)
    return gradients, [each.grad for each in one.parameters()], one.take_losses()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_split_and_plain_backward_agree_bit_for_bit(place, dropout):
    plain = run(stage(layers(2, dropout), place), split=False)
    split = run(stage(layers(2, dropout), place), split=True)
    assert plain[2] == split[2]
    assert len(split[2]) == (3 if place == "last" else 0)
    assert all(torch.equal(one, other) for one, other in zip(plain[1], split[1], strict=True))
    if place != "first":
        assert all(torch.equal(one, other) for one, other in zip(plain[0], split[0], strict=True))


def test_a_module_that_torch_cannot_split_says_why():
    one = stage(Checkpointed(), "middle")
    assert "torch cannot split its backward pass (" in one.cannot_split
    assert run(one, split=False)[0][0].shape == SPEC.shape


def test_trying_to_split_leaves_no_gradient_behind():
    assert all(each.grad is None for each in stage(layers(2), "middle").parameters())


def test_stages_and_their_boundaries():
    stages = cut(layers(7), 3)
    assert [len(each) for each in stages] == [2, 2, 3]
    assert boundaries(stages, inputs(MicroBatch(0, 0, 0))) == [
        Boundary(None, SPEC),
        Boundary(SPEC, SPEC),
        Boundary(SPEC, None),
    ]
