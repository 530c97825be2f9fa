"""A step of Megatron's optimizer is made again as it was made, though the training code has gone on."""

from contextlib import contextmanager

from recycle.megatron.flag.steps.redone import RepeatedStep


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
