"""What the training code knows goes from one server to another whole."""

import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.rerun_state_machine import get_rerun_state_machine

from harness.group_counting_adam import GroupCountingAdam
from recycle.megatron.flag.data.script_data import ScriptData
from recycle.megatron.flag.state import training_code
from recycle.megatron.flag.state.training_code import TrainingCode
from recycle.megatron.flag.steps.auxiliary_losses import reported, take_over
from recycle.megatron.flag.steps.whole_stage import WholeStage
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.join.handover import describe_state, make_room


def scheduler(length=1000, **settings):
    """Megatron's: the learning rate falls to 0 on so many samples."""
    optimizer = SimpleNamespace(param_groups=[{}])
    settings = {"use_checkpoint_opt_param_scheduler": False, **settings}
    return OptimizerParamScheduler(
        optimizer, 0.0, 1.0, 0.0, 0, length, "linear", 0.0, 0.0, length, "constant", **settings
    )


def rate(scheduler):
    return scheduler.optimizer.param_groups[0]["lr"]


class Scaler:
    """What losses are multiplied by, and for how long it has been that."""

    def __init__(self, scale, tracker):
        self.state = {"scale": torch.tensor([scale]), "growth_tracker": tracker}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def code(**counters):
    arguments = SimpleNamespace(
        iteration=0,
        curr_iteration=0,
        consumed_train_samples=0,
        consumed_valid_samples=0,
        skipped_train_samples=0,
        num_floating_point_operations_so_far=0,
    )
    vars(arguments).update(counters)
    made = TrainingCode(
        arguments, ScriptData(0, lambda: arguments.consumed_train_samples), lambda _, samples: 100 * samples
    )
    made.scheduler, made.optimizer = scheduler(), SimpleNamespace()
    return made, arguments


def come_over(step, state):
    """The same where a peer has it: all in one piece of memory."""
    _, received = make_room(describe_state(step, state))
    for name, each in received.items():
        each.copy_(state[name])
    return received


def test_all_that_is_known_is_taken_over():
    run_on_cpu()
    peer, arguments = code(iteration=20, consumed_train_samples=160, num_floating_point_operations_so_far=16_000)
    peer.begin()
    peer.begin_iteration(20)
    peer.optimizer.chained_optimizers = [SimpleNamespace(grad_scaler=Scaler(each, 3)) for each in (2.0, 8.0)]
    arguments.curr_iteration = 25
    arguments.consumed_train_samples, arguments.consumed_valid_samples = 200, 32
    peer.scheduler.step(200)
    totals = {}
    log = peer.log(lambda losses, totals, **_: totals.update({"lm loss": losses, "advanced iterations": 3}))
    log(torch.tensor([1.5]), totals, is_first_iteration=True)
    take_over({"load_balancing_loss": torch.tensor([0.0, 2.5])})
    state = peer.state(27)
    drawn = random.random(), numpy.random.rand(), torch.rand(1).item()
    received = come_over(27, state)
    reported()["load_balancing_loss"].zero_()
    back, own = code()
    back.optimizer.chained_optimizers = [SimpleNamespace(grad_scaler=Scaler(1.0, 0)) for _ in range(2)]
    back.adopt(27, received)
    states = [each.grad_scaler.state_dict() for each in back.optimizer.chained_optimizers]
    assert [(float(each["scale"]), each["growth_tracker"]) for each in states] == [(2.0, 3), (8.0, 3)]
    assert drawn == (random.random(), numpy.random.rand(), torch.rand(1).item())
    assert (peer.began, back.began) == (20, 20)
    assert (own.iteration, own.consumed_train_samples, own.consumed_valid_samples) == (25, 200, 32)
    assert own.num_floating_point_operations_so_far == 20_000
    assert reported()["load_balancing_loss"].tolist() == [0.0, 2.5]
    reported()["load_balancing_loss"].zero_()
    assert (back.scheduler.num_steps, rate(back.scheduler)) == (200, 0.8)
    seen = {}
    back.log(lambda losses, totals, **given: seen.update(totals, **given))(None, {}, is_first_iteration=True)
    assert seen == {"lm loss": torch.tensor([1.5]), "advanced iterations": 3, "is_first_iteration": False}


@pytest.mark.parametrize(("iteration", "is_first"), [(20, True), (21, False)])
def test_the_first_iteration_of_a_run_is_the_first_for_a_server_that_makes_it_again(iteration, is_first):
    """After that one, Megatron keeps its sums: the next line has the mean of both."""
    run_on_cpu()
    peer, arguments = code()
    peer.begin()
    peer.begin_iteration(20)
    arguments.curr_iteration = iteration
    back, _ = code()
    back.adopt(iteration, come_over(iteration, peer.state(iteration)))
    assert get_rerun_state_machine().first_iteration_complete == (not is_first)
    logged = []
    log = back.log(lambda *_, is_first_iteration: logged.append(is_first_iteration))
    log(None, {}, is_first_iteration=True)
    log(None, {}, is_first_iteration=False)
    assert logged == [is_first, False]


@pytest.mark.parametrize(("settings", "left"), [({}, 0.9), ({"use_checkpoint_opt_param_scheduler": True}, 0.8)])
def test_a_start_that_is_to_train_for_longer_goes_on_by_its_own_schedule_unless_it_asks_for_that_of_the_state(
    settings, left
):
    run_on_cpu()
    peer, _ = code()
    peer.begin()
    peer.begin_iteration(0)
    peer.scheduler.step(200)
    back, _ = code()
    back.scheduler = scheduler(2000, **settings)
    back.adopt(25, come_over(25, peer.state(25)))
    assert (back.scheduler.num_steps, rate(back.scheduler)) == (200, left)


def test_sums_that_came_through_host_memory_go_on_where_the_losses_are(monkeypatch):
    """A device without memory is in the place of a GPU: it does not mix with the CPU either."""
    run_on_cpu()
    peer, _ = code()
    peer.begin()
    peer.begin_iteration(0)
    peer.log(lambda _, totals, **__: totals.update({"lm loss": torch.tensor([1.5])}))(None, {})
    take_over({"load_balancing_loss": torch.tensor([0.0, 2.5])})
    received = come_over(25, peer.state(25))
    monkeypatch.setattr(training_code, "own_device", lambda: torch.device("meta"))
    back, _ = code()
    back.adopt(25, received)
    kept = {}
    back.log(lambda losses, totals, **_: kept.update(total=totals["lm loss"] + losses))(
        torch.ones(1, device="meta"), {}
    )
    assert kept["total"].device.type == "meta"


def test_what_is_no_such_state_is_an_error():
    back, _ = code()
    with pytest.raises(ConnectionLost, match="does not say how far its training is"):
        back.adopt(3, {"progress": torch.zeros(3, dtype=torch.uint8)})


@pytest.mark.parametrize("kind", [torch.optim.Adam, GroupCountingAdam])
def test_model_and_moments_are_taken_over(kind):
    def made(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        model[0].bias.requires_grad_(False)
        inner = kind([each for each in model.parameters() if each.requires_grad], lr=0.1)
        return model, inner, WholeStage(model, SimpleNamespace(optimizer=inner))

    def step(model, inner):
        torch.manual_seed(7)
        inner.zero_grad()
        model(torch.rand(4, 3)).square().sum().backward()
        inner.step()
        return [each.tolist() for each in model.state_dict().values()]

    model, inner, peer = made(1)
    step(model, inner)
    other, moments, back = made(2)
    back.adopt(1, come_over(1, peer.state(1)))
    assert step(other, moments) == step(model, inner)
