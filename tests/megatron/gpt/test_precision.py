"""Training in bfloat16 with main parameters in float32: without a server, and from a checkpoint."""

import msgspec
import pytest
import torch

from recycle.megatron.gpt.training import Run
from recycle.runtime.step.gradient_sums import FlatGradients
from recycle.runtime.step.main_parameters import MainParameters
from tests.megatron.gpt.test_training import MODEL, losses, plan

STEPS = 6


def test_training_follows_that_in_full_precision(tmp_path):
    full, _ = losses(Run(plan(), MODEL, 8, tmp_path / "full"))
    less, _ = losses(Run(plan("W1_1"), msgspec.structs.replace(MODEL, bf16=True), 8, tmp_path / "less"))
    assert full != less
    for step, each in full.items():
        assert sum(less[step]) == pytest.approx(sum(each), rel=0.02)


def test_main_parameters_outlive_a_stop(tmp_path):
    model = msgspec.structs.replace(MODEL, bf16=True)
    whole, _ = losses(Run(plan(), model, 6, tmp_path / "whole"))
    parts = Run(plan(), model, 3, tmp_path / "parts")
    first, _ = losses(parts)
    # What bfloat16 cannot hold is in the checkpoint too, or training would go on otherwise.
    second, _ = losses(msgspec.structs.replace(parts, iterations=6, resume=True))
    assert first | second == whole


def test_small_gradients_and_small_updates_are_not_lost():
    model = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    main = MainParameters([model])
    gradients = FlatGradients(main)
    main.use(gradients.views)
    for factor in (256.0, 0.5, 0.5):
        (model * factor).backward()
    assert model.grad is None
    assert gradients.buffers[0].tolist() == [257]
    (copy,) = main
    with torch.no_grad():
        for _ in range(8):
            copy.add_(0.001)
            main.copy_back()
    assert copy.item() == pytest.approx(1.008)
    assert model.item() == 1.0078125


def test_full_precision_is_its_own_main_parameter():
    model = torch.nn.Linear(2, 2)
    main = MainParameters(model.parameters())
    assert all(one is other for one, other in zip(main, model.parameters(), strict=True))
    assert list(main.named(model)) == ["weight", "bias"]
