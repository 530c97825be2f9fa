"""The small training script, in which the gradient of one micro-batch is NaN; NAN says when: an iteration, and a rank.

The loss itself is as it should be, so that only Megatron's check of gradients can notice.
"""

import os
import runpy
from pathlib import Path
from typing import Any

import megatron.training

from harness.wrapped_losses import wrap_losses

iteration, rank = map(int, os.environ["NAN"].split(","))


def spoil(loss: Any) -> None:
    now = megatron.training.get_args().curr_iteration + 1
    if loss.requires_grad and (now, os.environ["RANK"]) == (iteration, str(rank)):
        loss.register_hook(lambda gradient: gradient * float("nan"))


wrap_losses(spoil)
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
