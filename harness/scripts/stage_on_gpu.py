"""Two stages of a small GPT on a GPU, a micro-batch at a time: what has the host wait for the device is an error."""

import sys
from typing import cast

import torch

from recycle.job import Server
from recycle.megatron.gpt.device import compute_on
from recycle.megatron.gpt.forward import forward_step, load_text
from recycle.megatron.gpt.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place, groups_of, join_server
from recycle.runtime.execute.stage import MicroBatch

DEPTH = 2
OPTIONS = ModelOptions(DEPTH, hidden=16, heads=2, sequence=8, dropout=0.1)


def train(stages: list[MegatronStage], micro_batch: MicroBatch, split: bool) -> None:
    """One micro-batch through both stages and back."""
    first, last = stages
    message = first.forward(micro_batch, None)
    last.forward(micro_batch, cast("torch.Tensor", message).clone())
    back = None
    for stage in (last, first):
        back = stage.input_gradient(micro_batch, back) if split else stage.backward(micro_batch, back)
        if split:
            stage.weight_gradient(micro_batch)


def main() -> None:
    """Once to load all that is used, and once with every wait refused."""
    device = compute_on("cuda", 0)
    groups, text = join_server(Server(0, 0), DEPTH), load_text(None, OPTIONS)
    config = transformer_config(OPTIONS, DEPTH)
    stages = []
    for number in range(DEPTH):
        place = Place(number, DEPTH)
        chunk = build_stage(OPTIONS, config, number, DEPTH, groups_of(groups, place)).to(device)
        for each in chunk.parameters():
            each.grad = torch.zeros_like(each)
        shape = (OPTIONS.sequence, OPTIONS.micro_batch_size, OPTIONS.hidden)
        stages.append(MegatronStage(chunk, place, shape, 1, forward_step, text))
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        for split in (False, True):
            train(stages, MicroBatch(0, 0, int(split)), split)
    torch.cuda.set_sync_debug_mode("default")
    sys.stdout.write(f"losses of {len(stages[-1].take_losses() or ())} micro-batches\n")


if __name__ == "__main__":
    main()
