import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from recycle.runtime.errors import RunError
from recycle.runtime.step.optimizers import RateSchedule, make_optimizer, require_supported, set_rate, steps_made


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(0, 5),
    st.integers(1, 10),
    st.floats(0, 0.5),
    st.integers(0, 20),
)
def test_the_rate_is_that_of_megatrons_scheduler(decay, warm_up, length, least, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
    theirs = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=0.5,
        min_lr=least,
        lr_warmup_steps=warm_up,
        lr_decay_steps=warm_up + length,
        lr_decay_style=decay,
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    theirs.step(steps)
    assert RateSchedule(0.5, least, warm_up, warm_up + length, decay).at(steps) == pytest.approx(
        optimizer.param_groups[0]["lr"], rel=1e-14
    )


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_only_matrices_decay_and_steps_are_counted(kind):
    matrix, vector = (torch.nn.Parameter(torch.ones(shape)) for shape in ((2, 2), (2,)))
    optimizer = make_optimizer(kind, [matrix, vector], 0.0, 0.5, 0.9)
    require_supported(optimizer)
    assert steps_made(optimizer) == 0
    set_rate(optimizer, 0.1)
    for each in (matrix, vector):
        each.grad = torch.zeros_like(each)
    optimizer.step()
    assert steps_made(optimizer) == 1
    assert vector.tolist() == [1.0, 1.0]
    assert matrix.max() < 1.0


def test_an_optimizer_that_looks_at_all_parameters_at_once_is_refused():
    optimizer = torch.optim.LBFGS([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(RunError, match=r"optimizer is LBFGS: .* use adamw or sgd"):
        require_supported(optimizer)
