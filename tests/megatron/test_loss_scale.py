import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.optimizer.grad_scaler import DynamicGradScaler

from recycle.megatron.cpu import run_on_cpu
from recycle.runtime import loss_scale
from recycle.runtime.loss_scale import LossScale


@pytest.fixture(autouse=True, scope="module")
def _cpu():
    run_on_cpu()


@settings(deadline=None)
@given(st.lists(st.booleans() | st.integers(2, 5).map(lambda _: True), max_size=60), st.sampled_from([2.0**3, 2.0**32]))
def test_it_grows_and_falls_as_megatrons_does(finite, initial):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_scale, "GROWTH_INTERVAL", 4)
        theirs = DynamicGradScaler(initial, loss_scale.SMALLEST, 2.0, 0.5, 4, loss_scale.HYSTERESIS)
        ours = LossScale(initial)
        for each in finite:
            ours = ours.after(each)
            theirs.update(not each)
            assert ours.scale == theirs.scale.item()
