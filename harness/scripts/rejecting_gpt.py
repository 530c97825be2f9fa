"""The paced training script; Megatron's rerun engine rejects losses of the iterations that REJECT names: ``3,7``.

As with ``--check-for-spiky-loss``, the engine makes such an iteration again, finds the same loss, and goes on: nothing
is wrong with the numbers, and losses are those of a run that rejects nothing.
"""

import os
import runpy
from pathlib import Path
from typing import Any

import megatron.training
import torch
from megatron.core.rerun_state_machine import get_rerun_state_machine

from harness.wrapped_losses import wrap_losses

rejected = {int(each) for each in os.environ.get("REJECT", "").split(",") if each}


def validate(loss: Any) -> None:
    if torch.is_grad_enabled():
        is_rejected = megatron.training.get_args().curr_iteration + 1 in rejected
        get_rerun_state_machine().validate_result(
            result=loss, rejection_func=lambda _: is_rejected, message="rejected", tolerance=0.0, fatal=False
        )


wrap_losses(validate)
runpy.run_path(str(Path(__file__).with_name("paced_gpt.py")), run_name="__main__")
