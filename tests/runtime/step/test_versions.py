"""A step that is taken back leaves no trace, whatever came before it."""

import copy

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from recycle.runtime.step.versions import Versions

OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


class Training:
    """Two parameters and an optimizer, with the gradients of a step made from its number."""

    def __init__(self, optimizer):
        self.parameters = [torch.nn.Parameter(torch.arange(6.0).view(2, 3)), torch.nn.Parameter(torch.ones(()))]
        self.optimizer = OPTIMIZERS[optimizer](self.parameters)
        self.versions = Versions(self.parameters, self.optimizer)

    def step(self):
        source = torch.Generator().manual_seed(self.versions.newest)
        for parameter in self.parameters:
            parameter.grad = torch.randn(parameter.shape, generator=source)
        self.versions.keep()
        self.optimizer.step()
        self.versions.advance()

    def state(self):
        return copy.deepcopy(([each.data for each in self.parameters], self.optimizer.state_dict()["state"]))


def require_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@given(steps=st.lists(st.sampled_from(["step", "step and undo"]), min_size=1, max_size=8))
def test_undone_steps_are_as_if_they_had_never_been_made(optimizer, steps):
    disturbed, quiet = Training(optimizer), Training(optimizer)
    for each in steps:
        before = disturbed.state()
        disturbed.step()
        assert disturbed.versions.oldest == disturbed.versions.newest - 1
        if each == "step and undo":
            disturbed.versions.undo()
            require_same(disturbed.state(), before)
            assert disturbed.versions.oldest == disturbed.versions.newest
        else:
            quiet.step()
        require_same(disturbed.state(), quiet.state())
        assert disturbed.versions.newest == quiet.versions.newest


def test_there_is_one_way_back_and_not_two():
    training = Training("adamw")
    training.step()
    training.step()
    training.versions.undo()
    with pytest.raises(AssertionError, match="version 0 is not held"):
        training.versions.undo()


def test_before_the_first_step_and_after_a_state_was_adopted_there_is_no_way_back():
    training = Training("adamw")
    with pytest.raises(AssertionError, match="version -1 is not held"):
        training.versions.undo()
    training.step()
    training.versions.adopt(7)
    assert (training.versions.oldest, training.versions.newest) == (7, 7)
    with pytest.raises(AssertionError, match="version 6 is not held"):
        training.versions.undo()
