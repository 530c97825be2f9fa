"""What is made again comes to the result of a run without deaths: results that the rerun engine sees, and steps."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from megatron.core.rerun_state_machine import RerunMode, RerunState, RerunStateMachine

from recycle.megatron.flag.steps import redone
from recycle.megatron.flag.steps.redone import RepeatedStep, Reruns
from recycle.megatron.shared.cpu import run_on_cpu

ITERATION = 4


class Rank:
    """An engine that is about to compute an iteration for the first time, and rejects some results of it."""

    def __init__(self, monkeypatch, rejects=()):
        run_on_cpu()
        self.engine = RerunStateMachine(mode=RerunMode.VALIDATE_RESULTS)
        self.engine.state, self.engine.first_iteration_complete = RerunState.INITIAL_RUN, True
        self.engine.current_iteration = ITERATION + 1
        monkeypatch.setattr(redone, "get_rerun_state_machine", lambda: self.engine)
        self.reruns = Reruns()
        self._rejects = rejects

    def compute(self, results, fatal=False):
        for result in results:
            self._look(result, fatal)

    def _look(self, result, fatal):
        self.engine.validate_result(
            result=torch.tensor(float(result)),
            rejection_func=lambda value: value.item() in self._rejects,
            message="rejected",
            fatal=fatal,
        )


class Together:
    """What ranks of one view put in, one after the other; the last one has what all have."""

    def __init__(self):
        self.all = self.ranks = self
        self._most = torch.zeros(0)

    def maximum(self, tensor):
        self._most = torch.maximum(self._most, tensor) if len(self._most) else tensor.clone()
        tensor.copy_(self._most)


def test_what_was_computed_in_vain_counts_for_nothing(monkeypatch):
    rank = Rank(monkeypatch, rejects=(3,))
    rank.reruns.begin(0)
    rank.compute([1, 3])
    assert rank.engine.rerun_requested
    # The view has ended, and this server computes other micro-batches now.
    rank.reruns.begin(1)
    assert not rank.engine.rerun_requested
    rank.compute([1, 2, 3, 4])
    assert rank.engine.rerun_requested
    rank.engine.state = RerunState.RERUNNING_IN_PLACE
    rank.reruns.begin(1)
    rank.compute([1, 2])
    # Broken off, and begun again in the same view.
    rank.reruns.begin(1)
    rank.compute([1, 2, 3, 4])
    assert rank.engine.state is RerunState.RERUNNING_IN_PLACE
    assert rank.engine.continue_requested


def test_results_of_two_views_are_not_compared(monkeypatch):
    rank = Rank(monkeypatch, rejects=(3,))
    rank.reruns.begin(0)
    rank.compute([3])
    rank.engine.state = RerunState.RERUNNING_IN_PLACE
    rank.reruns.begin(1)
    # The first call is about another micro-batch than before: it would be taken for an error of the machine's.
    rank.compute([1, 3], fatal=True)
    assert (rank.engine.state, rank.engine.rerun_requested) == (RerunState.INITIAL_RUN, True)
    rank.engine.state = RerunState.RERUNNING_IN_PLACE
    rank.reruns.begin(1)
    rank.compute([1, 3], fatal=True)
    assert rank.engine.checkpoint_requested


def test_what_one_rank_has_noted_all_know(monkeypatch):
    rejecting, other, together = Rank(monkeypatch, rejects=(3,)), Rank(monkeypatch), Together()
    for rank in (rejecting, other):
        rank.reruns.begin(0)
        rank.compute([3])
        rank.reruns.share(together)
    assert rejecting.engine.rerun_requested
    assert other.engine.rerun_requested
    assert not other.engine.checkpoint_requested
    # The engine asks nobody any more.
    assert not dist.is_initialized()
    assert other.engine._reduce_any(other.engine.rerun_requested) is True
    assert other.engine._reduce_any([False, True]) == (False, True)


@pytest.mark.parametrize("mode", [RerunMode.VALIDATE_RESULTS, RerunMode.DISABLED])
def test_a_result_that_the_training_code_has_taken_is_not_looked_at_again(monkeypatch, mode):
    rank = Rank(monkeypatch, rejects=(3,))
    rank.engine.state, rank.engine.mode = RerunState.NOT_RUNNING_YET, mode
    with rank.reruns.again(ITERATION, 0, repeated=False):
        rank.reruns.begin(0)
        rank.compute([3], fatal=True)
        assert rank.engine.failed_validation_call is None
    assert (rank.engine.state, rank.engine.mode) == (RerunState.NOT_RUNNING_YET, mode)
    assert not rank.engine.rerun_requested


def test_within_an_iteration_its_first_results_are_looked_at_anew(monkeypatch):
    rank = Rank(monkeypatch, rejects=(3,))
    rank.reruns.begin(0)
    rank.compute([3])
    rank.engine.state = RerunState.RERUNNING_IN_PLACE
    with rank.reruns.again(ITERATION, 1, repeated=True):
        rank.reruns.begin(1)
        rank.compute([1, 3])
    assert (rank.engine.state, rank.engine.rerun_requested) == (RerunState.RERUNNING_IN_PLACE, True)
    rank.reruns.begin(1)
    rank.compute([1, 3])
    assert rank.engine.continue_requested


@pytest.mark.parametrize("state", [RerunState.NOT_RUNNING_YET, RerunState.RERUNNING_IN_PLACE])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("rejects", [(), (3,)])
@pytest.mark.parametrize("order", [1, -1])
def test_who_comes_back_does_what_the_others_training_code_did(monkeypatch, state, repeated, rejects, order):
    """Whether the results, made again, are rejected by either of them or by none."""
    back, past, together = Rank(monkeypatch, rejects), Rank(monkeypatch, rejects), Together()
    past.engine.state = state
    back.reruns.begin(1)
    back.compute([3])
    with past.reruns.again(ITERATION, 1, repeated):
        past.reruns.begin(1)
        past.compute([3])
        for each in (back, past, back, past)[::order]:
            each.reruns.share(together)
    assert back.engine._reduce_any(back.engine.rerun_requested) is repeated
    assert not back.engine.checkpoint_requested
    assert past.engine.state is state


def test_a_second_result_goes_on_where_the_first_is_right_in_another_view(monkeypatch):
    ranks, together = [Rank(monkeypatch), Rank(monkeypatch)], Together()
    for rank in ranks:
        rank.engine.state = RerunState.RERUNNING_IN_PLACE
        with rank.reruns.again(ITERATION, 1, repeated=True):
            rank.reruns.begin(1)
            rank.compute([3])
        rank.reruns.begin(1)
        rank.compute([3])
        rank.reruns.share(together)
        assert rank.engine.continue_requested


class Optimizer:
    """What it is asked for, and with which learning rate."""

    def __init__(self):
        self.param_groups = [{"lr": 1.0, "weight_decay": 0.1}]
        self.done = []

    def step(self):
        self.done.append(("step", self.param_groups[0]["lr"]))
        return True, 2.0, None

    def prepare_grads(self):
        self.done.append("prepare")

    def zero_grad(self):
        self.done.append("zero")


class Calls:
    """Where a server is in the calls of all."""

    def __init__(self):
        self.at, self.began = 0, []

    def mark(self):
        return self.at

    @contextmanager
    def again(self, mark):
        self.began.append(mark)
        yield


def test_a_step_that_was_made_is_made_again_with_its_own_settings():
    optimizer, calls = Optimizer(), Calls()
    version = [0]
    repeated = RepeatedStep(optimizer, calls, lambda: version[0])
    version[0], calls.at = 5, 3
    assert optimizer.step() == (True, 2.0, None)
    calls.at, optimizer.param_groups[0]["lr"] = 8, 0.5
    repeated.prepare()
    repeated.repeat(5)
    assert optimizer.done == [("step", 1.0), "zero", ("step", 1.0)]
    assert (calls.began, optimizer.param_groups[0]["lr"]) == ([3], 0.5)
    # The training code makes the step itself that it has not begun.
    repeated.repeat(6)
    assert optimizer.done[3:] == []
    assert calls.began == [3]


def test_a_step_that_was_begun_finds_gradients_as_it_has_made_them_ready():
    optimizer, calls = Optimizer(), Calls()
    optimizer.step = lambda: repeated.repeat(5)
    calls.at = 3
    repeated = RepeatedStep(optimizer, calls, lambda: 5)
    optimizer.step()
    assert (optimizer.done, calls.began) == (["prepare"], [3])
