"""The paced training script; Megatron's rerun engine rejects losses of the iterations that REJECT names: ``3,7``.

As with ``--check-for-spiky-loss``, the engine makes such an iteration again, finds the same loss, and goes on: nothing
is wrong with the numbers, and losses are those of a run that rejects nothing.
"""

import os
import runpy
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import megatron.training
import torch
from megatron.core.rerun_state_machine import get_rerun_state_machine

rejected = {int(each) for each in os.environ.get("REJECT", "").split(",") if each}
pretrain = megatron.training.pretrain


def rejecting_loss(loss_func: Callable[..., Any]) -> Callable[..., Any]:
    def validated(*arguments: Any) -> Any:
        loss, *rest = loss_func(*arguments)
        if torch.is_grad_enabled():
            is_rejected = megatron.training.get_args().curr_iteration + 1 in rejected
            get_rerun_state_machine().validate_result(
                result=loss, rejection_func=lambda _: is_rejected, message="rejected", tolerance=0.0, fatal=False
            )
        return loss, *rest

    return validated


@wraps(pretrain)
def rejecting_pretrain(*arguments: Any, forward_step_func: Callable[..., Any], **keywords: Any) -> Any:
    @wraps(forward_step_func)
    def forward_step(*given: Any, **named: Any) -> Any:
        output, loss_func = forward_step_func(*given, **named)
        return output, rejecting_loss(loss_func)

    return pretrain(*arguments, forward_step_func=forward_step, **keywords)


megatron.training.pretrain = rejecting_pretrain
runpy.run_path(str(Path(__file__).with_name("paced_gpt.py")), run_name="__main__")
