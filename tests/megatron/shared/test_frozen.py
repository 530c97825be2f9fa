"""A first stage that a script has frozen, as for fine-tuning."""

from types import SimpleNamespace

import pytest
import torch

from harness.local import launch
from recycle.job import Server
from recycle.megatron.gpt.device import compute_on
from recycle.megatron.gpt.forward import forward_step
from recycle.megatron.gpt.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.gpt.text import ByteText
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.ties import tie_of
from recycle.megatron.shared.world import Place, groups_of, join_server
from recycle.runtime.execute.stage import MicroBatch

DEPTH, HIDDEN, SEQUENCE, SAMPLES = 2, 32, 16, 2
OPTIONS = ModelOptions(DEPTH, HIDDEN, 2, SEQUENCE, micro_batch_size=SAMPLES, tied=True)
NETWORK = SimpleNamespace(server=Server(0, 0), group=None)


def frozen_model():
    compute_on("cpu", 0)
    groups, place = join_server(Server(0, 0), DEPTH), Place(0, DEPTH)
    config = transformer_config(OPTIONS, DEPTH)
    return build_stage(OPTIONS, config, 0, DEPTH, groups_of(groups, place)).requires_grad_(False)


@pytest.mark.parametrize("split", [False, True])
def test_its_backward_pass_computes_nothing(split):
    def body(_):
        text = ByteText(b"abc def" * 500, "x", SEQUENCE, SAMPLES, 0)
        shape = (SEQUENCE, SAMPLES, HIDDEN)
        stage = MegatronStage(frozen_model(), Place(0, DEPTH), shape, DEPTH, forward_step, text)
        micro_batch = MicroBatch(0, 0, 0)
        sent = stage.forward(micro_batch, None)
        if split:
            assert stage.input_gradient(micro_batch, torch.ones_like(sent)) is None
            stage.weight_gradient(micro_batch)
        else:
            assert stage.backward(micro_batch, torch.ones_like(sent)) is None
        assert not any(stage.held())

    launch(1, body)


def test_an_embedding_that_is_not_trained_needs_no_tie():
    def body(_):
        assert tie_of([frozen_model()], NETWORK, [Server(0, 0)], [Server(0, 1)]) is None

    launch(1, body)
