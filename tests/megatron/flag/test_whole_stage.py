"""A stage steps Megatron's optimizer as its scheduler had set it, and leaves it as the scheduler has set it since."""

import pytest
import torch

from recycle.megatron.flag.steps.whole_stage import DdpParameters


@pytest.fixture
def weight():
    return torch.nn.Parameter(torch.zeros(3))


@pytest.fixture
def optimizer(weight):
    return torch.optim.SGD([{"params": [weight], "max_lr": 7.0}], lr=1.0)


def step(parameters, optimizer, iteration):
    parameters.use([torch.ones(3)])
    parameters.prepare(optimizer, iteration)
    parameters.step(optimizer)


def test_a_step_that_is_made_again_is_made_with_the_settings_of_its_iteration(weight, optimizer):
    parameters = DdpParameters([weight], optimizer)
    (group,) = optimizer.param_groups
    for iteration, rate in ((3, 1.0), (4, 0.5), (5, 0.25), (6, 0.125)):
        group["lr"] = rate
        parameters.keep_settings(iteration)
    group |= {"lr": 100.0, "max_lr": 8.0}
    for iteration in (4, 5, 6):
        step(parameters, optimizer, iteration)
    assert weight.tolist() == [-0.875] * 3
    assert (group["lr"], group["max_lr"]) == (100.0, 8.0)
    with pytest.raises(KeyError):
        step(parameters, optimizer, 3)


def test_ddp_finds_gradients_in_main_grad_only(weight, optimizer):
    parameters = DdpParameters([weight], optimizer)
    parameters.keep_settings(0)
    step(parameters, optimizer, 0)
    assert weight.grad is None
    assert weight.main_grad.tolist() == [1.0] * 3
