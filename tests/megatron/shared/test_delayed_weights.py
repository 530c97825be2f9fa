"""The split of modules that leave their weight gradients themselves, as Transformer Engine's do."""

import sys
from types import SimpleNamespace

import pytest
import torch
from megatron.core import utils
from packaging.version import Version

from harness.delaying_layers import DelayingLayers, DelayingLinear
from recycle.megatron.shared.delayed_weights import (
    DEBUG_STATE,
    Delayed,
    DelayedModules,
    add_up_always,
    delay_weight_gradients,
)
from recycle.runtime.errors import RunError


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
def test_a_bias_gets_its_gradient_once_wherever_that_comes_from(elsewhere):
    model = make(DelayingLinear, elsewhere=elsewhere)
    modules, left = leave(model)
    assert all((each.grad is not None) == elsewhere for each in (model[0].bias, model[2].bias))
    for each in left:
        modules.compute(each)
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


def test_of_a_rounded_tensor_its_parts_are_held():
    whole = SimpleNamespace(get_data_tensors=lambda: (torch.zeros(3), None, torch.zeros(2, dtype=torch.uint8)))
    left = Delayed(None, [([whole, torch.zeros(1)], None)])
    assert [each.nbytes for each in left.tensors] == [12, 2, 4]


def test_what_experts_leave_is_held_by_expert():
    rounded = SimpleNamespace(get_data_tensors=lambda: (torch.zeros(3), None))
    main_grads = [torch.zeros(7), torch.zeros(7)]
    left = Delayed(None, [([[torch.zeros(1), rounded], [torch.zeros(2), torch.zeros(4)], main_grads], None)])
    assert [each.nbytes for each in left.tensors] == [4, 12, 8, 16]


def test_experts_that_do_not_add_up_themselves_are_refused():
    class DelayingExperts(DelayingLinear):
        num_gemms = 2

    with pytest.raises(RunError, match=r"^gradient_accumulation_fusion is off: a DelayingExperts .* --backward fused"):
        DelayedModules(DelayingExperts(4, 4))
    assert DelayedModules(DelayingExperts(4, 4, fused=True)).take() == []


def test_weights_that_two_modules_use_are_refused():
    model = torch.nn.Sequential(DelayingLinear(4, 4), DelayingLinear(4, 4))
    model[1].weight = model[0].weight
    with pytest.raises(RunError, match=r"a weight of a DelayingLinear is tied .* --backward fused"):
        DelayedModules(model)
    assert DelayedModules(torch.nn.Linear(2, 2)).take() == []


@pytest.fixture
def new_enough(monkeypatch):
    """Where Transformer Engine is not installed, some releases of Megatron say that it is 0.0.0."""
    monkeypatch.setattr(utils, "get_te_version", lambda: Version("2.10.0"))


@pytest.mark.usefixtures("new_enough")
def test_overlapped_communication_is_refused():
    config = SimpleNamespace(tp_comm_overlap=True, delay_wgrad_compute=False)
    with pytest.raises(RunError, match=r"^tp_comm_overlap is on"):
        delay_weight_gradients(config)
    config.tp_comm_overlap = False
    delay_weight_gradients(config)
    assert config.delay_wgrad_compute


def test_releases_whose_layers_leave_nothing_are_refused(monkeypatch):
    config = SimpleNamespace(tp_comm_overlap=False)
    monkeypatch.setattr(utils, "get_te_version", lambda: Version("2.2.0"))
    with pytest.raises(RunError, match=r"^Transformer Engine is 2\.2\.0: .* from 2\.3\.0 on"):
        delay_weight_gradients(config)
    monkeypatch.setattr(utils, "get_te_version", lambda: Version("2.10.0"))
    delay_weight_gradients(config)
    assert config.delay_wgrad_compute


@pytest.mark.usefixtures("new_enough")
def test_fused_operations_are_refused():
    config = SimpleNamespace(tp_comm_overlap=False, use_transformer_engine_op_fuser=True)
    with pytest.raises(RunError, match=r"^use_transformer_engine_op_fuser is on"):
        delay_weight_gradients(config)
    assert not hasattr(config, "delay_wgrad_compute")


def test_layers_that_are_debugged_are_refused(monkeypatch):
    state = SimpleNamespace(debug_enabled=True)
    monkeypatch.setitem(sys.modules, DEBUG_STATE, SimpleNamespace(TEDebugState=state))
    with pytest.raises(RunError, match=r"^nvdlfw_inspect is initialized"):
        DelayedModules(DelayingLinear(4, 4))
    assert DelayedModules(torch.nn.Linear(4, 4)).take() == []
    state.debug_enabled = False
    assert DelayedModules(DelayingLinear(4, 4)).take() == []
