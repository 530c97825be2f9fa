"""Layers are told of the first micro-batch after every step, whichever it is: they make things of their parameters."""

from types import SimpleNamespace

import torch

from recycle.megatron.shared import stage as module
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place
from recycle.runtime.execute.stage import MicroBatch


def test_the_first_after_a_step_or_a_drop_is_said_to_be(monkeypatch):
    told = []

    def forward_step(*_, is_first_microbatch, current_microbatch, **__):
        told.append((current_microbatch, is_first_microbatch))
        return torch.ones(1), 0

    monkeypatch.setattr(module.schedules, "forward_step", forward_step)
    monkeypatch.setattr(module.schedules, "deallocate_output_tensor", lambda *_: None)
    config = SimpleNamespace(
        pipeline_dtype=torch.float32,
        hidden_dropout=0,
        attention_dropout=0,
        deallocate_pipeline_outputs=False,
        context_parallel_size=1,
    )
    monkeypatch.setattr(module, "get_model_config", lambda _: config)
    data = SimpleNamespace(training=lambda _: None, held_out=lambda _: None)
    stage = MegatronStage(torch.nn.Linear(1, 1), Place(0, 2), (1,), 4, None, data)

    def forward(step, number):
        stage.forward(MicroBatch(step, 0, number), None)

    forward(0, 3)
    forward(0, 1)
    forward(1, 2)
    stage.evaluate(MicroBatch(0, 0, 0), None)
    forward(1, 0)
    forward(1, 1)
    stage.drop()
    forward(1, 1)
    assert told == [(3, True), (1, False), (2, True), (0, True), (0, True), (1, False), (1, True)]
