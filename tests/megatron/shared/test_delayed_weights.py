"""The split of modules that leave their weight gradients themselves, as Transformer Engine's do."""

import queue
from types import SimpleNamespace

import pytest
import torch

from recycle.megatron.shared.delayed_weights import Delayed, DelayedModules, add_up_always, delay_weight_gradients
from recycle.runtime.errors import RunError


class Store:
    """What WeightGradStore is."""

    def __init__(self):
        self.context = queue.Queue()

    def delay_wgrad_compute(self):
        return True


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, source, weight, bias, store):
        ctx.save_for_backward(source, weight)
        ctx.store = store
        return source @ weight.t() + bias

    @staticmethod
    def backward(ctx, gradient):
        source, weight = ctx.saved_tensors
        ctx.store.context.put([[source, gradient], lambda source, gradient: (gradient.t() @ source, gradient.sum(0))])
        return gradient @ weight, None, None, None


class DelayingLinear(torch.nn.Linear):
    """It stands in for Transformer Engine's Linear: it writes over ``grad``, and leaves a bias that has one alone."""

    def __init__(self, *sizes, fused=False):
        super().__init__(*sizes)
        self.wgrad_store = Store()
        self.fuse_wgrad_accumulation = fused

    def forward(self, source):
        return Product.apply(source, self.weight, self.bias, self.wgrad_store)

    def backward_dw(self):
        tensors, compute = self.wgrad_store.context.get()
        weight, bias = compute(*tensors)
        if self.fuse_wgrad_accumulation:
            self.weight.main_grad += weight
            self.weight.grad = torch.full_like(weight, 1e9)
        else:
            self.weight.grad = weight
        if self.bias.grad is None:
            self.bias.grad = bias


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


def nobody(_):
    """Is told of nothing."""


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
        modules.compute(left[place], nobody)
    torch.testing.assert_close([each.grad for each in model.parameters()], expected())


@pytest.mark.parametrize("fused", [False, True])
def test_they_are_added_where_megatron_adds_them(fused):
    model = make(DelayingLinear, fused=fused)
    for each in model.parameters():
        each.main_grad = torch.zeros_like(each)
    modules, left = leave(model)
    for each in left:
        modules.compute(each, nobody)
    torch.testing.assert_close([each.main_grad for each in model.parameters()], expected())
    assert all(each.grad is None for each in model.parameters())


def test_a_gradient_that_is_a_part_of_a_buffer_stays_that():
    model = make(DelayingLinear)
    buffer = torch.zeros(sum(each.numel() for each in model.parameters()))
    parts = buffer.split([each.numel() for each in model.parameters()])
    for each, part in zip(model.parameters(), parts, strict=True):
        each.grad = part.view_as(each)
    modules, (*others, last) = leave(model)
    for each in others:
        modules.compute(each, nobody)
    told = []
    modules.compute(last, lambda parameter: told.append((parameter, parameter.grad.clone())))
    torch.testing.assert_close(buffer, torch.cat([each.flatten() for each in expected()]))
    # Each is told of when all of it is there, and the last layer first.
    assert {id(parameter) for parameter, _ in told[:2]} == {id(each) for each in model[2].parameters()}
    assert len(told) == 4
    assert all(torch.equal(parameter.grad, then) for parameter, then in told)


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
    left = Delayed(None, [([whole, torch.zeros(1), None], None)])
    assert [each.nbytes for each in left.tensors] == [12, 2, 4]


class BiasOfBackward(torch.autograd.Function):
    """The backward pass computes the bias's gradient, as it does where products are rounded."""

    @staticmethod
    def forward(ctx, source, weight, bias, store):
        ctx.save_for_backward(source, weight)
        ctx.store = store
        return source @ weight.t() + bias

    @staticmethod
    def backward(ctx, gradient):
        source, weight = ctx.saved_tensors
        ctx.store.context.put([[source, gradient], lambda source, gradient: (gradient.t() @ source, ctx.store.nothing)])
        return gradient @ weight, None, gradient.sum(0), None


class RoundingLinear(DelayingLinear):
    """It stands in for Transformer Engine's Linear in fp8: W takes a bias without gradient for one that it owes."""

    def forward(self, source):
        return BiasOfBackward.apply(source, self.weight, self.bias, self.wgrad_store)

    def backward_dw(self):
        tensors, compute = self.wgrad_store.context.get()
        self.weight.grad, bias = compute(*tensors)
        if self.bias.grad is None:
            self.bias.grad = bias.to(self.bias.dtype)


@pytest.mark.parametrize("nothing", [None, torch.empty(0)])
def test_biases_keep_the_gradient_of_the_backward_pass(nothing):
    model = make(RoundingLinear)
    for each in (model[0], model[2]):
        each.wgrad_store.nothing = nothing
    modules, left = leave(model)
    for each in reversed(left):
        modules.compute(each, nobody)
    torch.testing.assert_close([each.grad for each in model.parameters()], expected())


def test_of_several_products_all_tensors_are_held():
    left = Delayed(None, [([[torch.zeros(3), torch.zeros(2)], [torch.zeros(1)], [None]], None)])
    assert [each.nbytes for each in left.tensors] == [12, 8, 4]


def test_weights_that_two_modules_use_are_refused():
    model = torch.nn.Sequential(DelayingLinear(4, 4), DelayingLinear(4, 4))
    model[1].weight = model[0].weight
    with pytest.raises(RunError, match=r"a weight of a DelayingLinear is tied .* --backward fused"):
        DelayedModules(model)
    assert DelayedModules(torch.nn.Linear(2, 2)).take() == []


def test_overlapped_communication_is_refused():
    config = SimpleNamespace(tp_comm_overlap=True, delay_wgrad_compute=False, num_moe_experts=None)
    with pytest.raises(RunError, match=r"^tp_comm_overlap is on"):
        delay_weight_gradients(config)
    config.tp_comm_overlap = False
    delay_weight_gradients(config)
    assert config.delay_wgrad_compute


def test_experts_whose_gradients_are_not_added_up_by_their_layers_are_refused():
    """Transformer Engine's GroupedLinear gives what is in fresh memory as their gradients, before W writes there."""
    config = SimpleNamespace(
        tp_comm_overlap=False, num_moe_experts=2, moe_grouped_gemm=True, gradient_accumulation_fusion=False
    )
    with pytest.raises(RunError, match=r"^gradient_accumulation_fusion is off: .* --backward fused"):
        delay_weight_gradients(config)
    for name, value in (("gradient_accumulation_fusion", True), ("moe_grouped_gemm", False), ("num_moe_experts", None)):
        delay_weight_gradients(SimpleNamespace(**vars(config) | {name: value}))
