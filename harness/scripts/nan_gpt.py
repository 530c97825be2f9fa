"""The small training script, in which the gradient of one micro-batch is NaN; NAN says when: an iteration, and a rank.

The loss itself is as it should be, so that only Megatron's check of gradients can notice.
"""

import os
import runpy
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import megatron.training

iteration, rank = map(int, os.environ["NAN"].split(","))
pretrain = megatron.training.pretrain


def spoiling_loss(loss_func: Callable[..., Any]) -> Callable[..., Any]:
    def spoiled(*arguments: Any) -> Any:
        loss, *rest = loss_func(*arguments)
        now = megatron.training.get_args().curr_iteration + 1
        if loss.requires_grad and (now, os.environ["RANK"]) == (iteration, str(rank)):
            loss.register_hook(lambda gradient: gradient * float("nan"))
        return loss, *rest

    return spoiled


@wraps(pretrain)
def spoiling_pretrain(*arguments: Any, forward_step_func: Callable[..., Any], **keywords: Any) -> Any:
    @wraps(forward_step_func)
    def forward_step(*given: Any, **named: Any) -> Any:
        output, loss_func = forward_step_func(*given, **named)
        return output, spoiling_loss(loss_func)

    return pretrain(*arguments, forward_step_func=forward_step, **keywords)


megatron.training.pretrain = spoiling_pretrain
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
