"""Megatron's timers go on with an iteration that is made again."""

from types import SimpleNamespace

import pytest
import torch
from megatron.core.timers import Timers

from recycle.megatron.shared import stage as module
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.stage import MicroBatch


class Layer(torch.nn.Linear):
    """A chunk of one."""

    def set_input_tensor(self, received):
        """It reads data."""


@pytest.mark.parametrize("level", [0, 2])
def test_a_forward_pass_that_fails_is_timed_anew(monkeypatch, level):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    timers, broken = Timers(level, "minmax"), [True, False]
    config = SimpleNamespace(
        pipeline_dtype=torch.float32,
        hidden_dropout=0,
        attention_dropout=0,
        deallocate_pipeline_outputs=False,
        context_parallel_size=1,
        enable_autocast=False,
        calculate_per_token_loss=False,
        num_moe_experts=None,
        timers=timers,
    )
    monkeypatch.setattr(module, "get_model_config", lambda _: config)

    def forward_step(_, model):
        if broken.pop(0):
            raise ViewBroken("a peer is gone")
        return model(torch.ones(1, 1)), None

    data = SimpleNamespace(training=lambda _: None)
    stage = MegatronStage(Layer(1, 1), Place(0, 2), (1,), 1, forward_step, data)
    with pytest.raises(ViewBroken):
        stage.forward(MicroBatch(0, 0, 0), None)
    stage.drop()
    stage.forward(MicroBatch(0, 0, 0), None)
    assert not level or timers("forward-compute").elapsed() > 0
