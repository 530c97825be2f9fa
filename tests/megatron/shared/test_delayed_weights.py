"""The split of modules that leave their weight gradients themselves, as Transformer Engine's do."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from harness.delaying_layers import DelayingLayers, DelayingLinear
from recycle.megatron.shared.delayed_weights import DEBUG_STATE, Delayed, DelayedModules, add_up_always


def make(kind, **more):
    torch.manual_seed(0)
    return torch.nn.Sequential(kind(4, 6, **more), torch.nn.Tanh(), kind(6, 3, **more))


def sources():
    torch.manual_seed(1)
    return [torch.randn(5, 4) for _ in range(3)]


def expected():
    whole = make(torch.nn.Linear)
    for each in sources():
        whole(each).square().sum().backward()
    return [each.grad for each in whole.parameters()]


def leave(model):
    modules, left = DelayedModules(model), []
    for each in sources():
        model(each).square().sum().backward()
        left.append(modules.take())
    return modules, left


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_weight_gradients_add_up_in_any_order(order):
    model = make(DelayingLinear)
    modules, left = leave(model)
    assert all(each.grad is None for each in model.parameters())
    assert sum(each.nbytes for delayed in left[0] for each in delayed.tensors) == 4 * 5 * (4 + 6 + 6 + 3)
    for place in order:
        modules.compute(left[place])
    torch.testing.assert_close([each.grad for each in model.parameters()], expected())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_each_of_several_products_in_a_module_has_its_own_bias(elsewhere):
    torch.manual_seed(0)
    model = DelayingLayers(elsewhere)
    whole = {name: each.detach().requires_grad_() for name, each in model.named_parameters()}
    for each in sources():
        hidden = (each + whole["layer_norm_bias"]) @ whole["fc1_weight"].t() + whole["fc1_bias"]
        (hidden.tanh() @ whole["fc2_weight"].t() + whole["fc2_bias"]).square().sum().backward()
    modules, left = leave(model)
    for each in reversed(left):
        modules.compute(each)
    torch.testing.assert_close([each.grad for each in model.parameters()], [each.grad for each in whole.values()])


@pytest.mark.parametrize("fused", [False, True])
def test_they_are_added_where_megatron_adds_them(fused):
    model = make(DelayingLinear, fused=fused)
    for each in model.parameters():
        each.main_grad = torch.zeros_like(each)
    modules, left = leave(model)
    for each in left:
        modules.compute(each)
    torch.testing.assert_close([each.main_grad for each in model.parameters()], expected())
    assert all(each.grad is None for each in model.parameters())


def test_a_gradient_that_is_a_part_of_a_buffer_stays_that():
    model = make(DelayingLinear)
    buffer = torch.zeros(sum(each.numel() for each in model.parameters()))
    parts = buffer.split([each.numel() for each in model.parameters()])
    for each, part in zip(model.parameters(), parts, strict=True):
        each.grad = part.view_as(each)
    modules, left = leave(model)
    for each in left:
        modules.compute(each)
    torch.testing.assert_close(buffer, torch.cat([each.flatten() for each in expected()]))


def test_what_was_taken_can_be_forgotten():
    model = make(DelayingLinear)
    modules, left = leave(model)
    left.clear()
    model(sources()[0]).sum().backward()
    (first, second) = modules.take()
    assert len(first.entries) == len(second.entries) == 1
    assert modules.take() == []


def test_no_layer_that_adds_up_itself_is_told_of_the_first_micro_batch():
    layers = {fused: make(DelayingLinear, fused=fused)[0] for fused in (False, True)}
    for each in layers.values():
        each.disable_parameter_transpose_cache = False
        add_up_always(torch.nn.Sequential(each))
    assert {fused: each.disable_parameter_transpose_cache for fused, each in layers.items()} == {
        False: False,
        True: True,
    }


def test_what_experts_leave_is_held_by_expert():
    rounded = SimpleNamespace(get_data_tensors=lambda: (torch.zeros(3), None))
    main_grads = [torch.zeros(7), torch.zeros(7)]
    left = Delayed(None, [([[torch.zeros(1), rounded], [torch.zeros(2), torch.zeros(4)], main_grads], None)])
    assert [each.nbytes for each in left.tensors] == [4, 12, 8, 16]


class DelayingExperts(DelayingLinear):
    num_gemms = 2


def tied():
    model = torch.nn.Sequential(DelayingLinear(4, 4), DelayingLinear(4, 4))
    model[1].weight = model[0].weight
    return model


def debugged(monkeypatch):
    state = SimpleNamespace(debug_enabled=True)
    monkeypatch.setitem(sys.modules, DEBUG_STATE, SimpleNamespace(TEDebugState=state))
    return DelayingLinear(4, 4)


def overlapping():
    layer = DelayingLinear(4, 4)
    layer.ub_bulk_wgrad = True
    return layer


@pytest.mark.parametrize("kind", ["experts", "tied", "debugged", "overlapping", "no store"])
def test_layers_that_cannot_leave_their_weight_gradients_compute_them_at_once(kind, monkeypatch):
    model = {
        "experts": lambda: DelayingExperts(4, 4),
        "tied": tied,
        "debugged": lambda: debugged(monkeypatch),
        "overlapping": overlapping,
        "no store": lambda: torch.nn.Linear(4, 4),
    }[kind]()
    modules = DelayedModules(model)
    model(sources()[0]).sum().backward()
    assert modules.take() == []
    assert all(each.grad is not None for each in model.parameters())


def test_experts_that_add_up_themselves_leave_their_weight_gradients():
    model = DelayingExperts(4, 4, fused=True)
    modules = DelayedModules(model)
    model(sources()[0]).sum().backward()
    assert len(modules.take()) == 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("order", ["at once first", "left first"])
def test_a_micro_batch_is_computed_at_once_among_others_whose_weight_gradients_are_left(fused, order):
    model = make(DelayingLinear, fused=fused)
    for each in model.parameters():
        each.main_grad = torch.zeros_like(each)
    modules, left = DelayedModules(model), []
    for place, each in enumerate(sources()):
        now = (place == 0) == (order == "at once first")
        loss = model(each).square().sum()
        with modules.at_once() if now else nullcontext():
            loss.backward()
        left.append(modules.take())
        assert bool(left[-1]) != now
        add_what_autograd_was_given(model)
    for each in left:
        modules.compute(each)
    torch.testing.assert_close([each.main_grad for each in model.parameters()], expected())


def add_what_autograd_was_given(model):
    """As Megatron's DDP does."""
    for each in model.parameters():
        if each.grad is not None and not getattr(each, "grad_added_to_main_grad", False):
            each.main_grad.add_(each.grad)
        each.grad = None


def test_the_wrapper_of_a_layer_is_told_that_something_was_left():
    layer = DelayingLinear(4, 4)
    layer.config = SimpleNamespace(delay_wgrad_compute=False)
    modules, left = leave(layer)
    modules.compute(left[0])
    assert layer.config.delay_wgrad_compute


class AskingLinear(DelayingLinear):
    """As Megatron's TEGroupedLinear from 0.18 on, it has copied its configuration when it was made, and asks itself."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.delay_wgrad_compute = False

    def backward_dw(self):
        if self.delay_wgrad_compute:
            super().backward_dw()


def test_a_wrapper_that_asks_itself_computes_what_was_left():
    model = make(AskingLinear)
    modules, left = leave(model)
    for each in left:
        modules.compute(each)
    torch.testing.assert_close([each.grad for each in model.parameters()], expected())


class InParts(torch.nn.Module):
    """As ``--mlp-chunks-for-training`` does, it uses a module for one part of its input after the other."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, source):
        return torch.cat([self.module(each) for each in source.chunk(3)])


@pytest.mark.parametrize("make_module", [lambda: DelayingLinear(4, 3), DelayingLayers], ids=["linear", "layers"])
def test_a_module_that_is_used_several_times_computes_all_that_it_left(make_module):
    found = []
    for now in (False, True):
        torch.manual_seed(0)
        model = InParts(make_module())
        modules, left = DelayedModules(model), []
        for each in sources():
            with modules.at_once() if now else nullcontext():
                model(each).square().sum().backward()
            left.append(modules.take())
        for each in left:
            modules.compute(each)
        found.append([each.grad for each in model.parameters()])
    torch.testing.assert_close(*found)
