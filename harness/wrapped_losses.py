"""What is done with each loss of a Megatron script, before ``pretrain`` is given its forward step."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import megatron.training


def wrap_losses(see: Callable[[Any], None]) -> None:
    """Have each loss of a script that calls ``pretrain`` from now on seen when it is computed.

    Args:
        see: is given the loss, and may register hooks on it.
    """
    pretrain = megatron.training.pretrain

    def seen(loss_func: Callable[..., Any]) -> Callable[..., Any]:
        def with_loss(*arguments: Any) -> Any:
            loss, *rest = loss_func(*arguments)
            see(loss)
            return loss, *rest

        return with_loss

    @wraps(pretrain)
    def seeing_pretrain(*arguments: Any, forward_step_func: Callable[..., Any], **keywords: Any) -> Any:
        @wraps(forward_step_func)
        def forward_step(*given: Any, **named: Any) -> Any:
            output, loss_func = forward_step_func(*given, **named)
            return output, seen(loss_func)

        return pretrain(*arguments, forward_step_func=forward_step, **keywords)

    megatron.training.pretrain = seeing_pretrain
