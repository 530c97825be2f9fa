"""Transformer Engine's layers under the flag: they split their backward pass themselves, where their release can."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from recycle.megatron.shared.delayed_weights import DELAYS, delay_weight_gradients, delays
from recycle.megatron.shared.patching import replace
from recycle.megatron.shared.release import module_with
from recycle.runtime.errors import RunError

ENGINE = "transformer_engine"
DELAYS_APART = "2.7.0"
"""The release from which Megatron has layers leave weight gradients that they do not add up themselves."""


def engine_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Those of Transformer Engine's in a model of Megatron's."""
    return [each for each in model.modules() if type(each).__module__.endswith(f"extensions.{ENGINE}")]


def cannot_delay(arguments: Any) -> list[str]:
    """Why layers of the release that is installed cannot leave their weight gradients; empty if they can.

    Args:
        arguments: Megatron's.
    """
    if arguments.transformer_impl != ENGINE:
        return []
    if module_with("gpt_config_from_args") is not None:
        return [f"transformer_impl is {ENGINE}: this release makes its configuration before there is a plan"]
    from megatron.core.utils import get_te_version, is_te_min_version

    needed = DELAYS if arguments.gradient_accumulation_fusion else DELAYS_APART
    if is_te_min_version(needed):
        return []
    return [f"transformer_impl is {ENGINE}: release {get_te_version()} leaves no weight gradients; {needed} does"]


def delay_where_split(splits: Callable[[], bool]) -> None:
    """Have Transformer Engine's layers leave their weight gradients where the backward pass is split.

    Megatron's own option is for experts whose communication is overlapped, so it is set when that was checked.

    Args:
        splits: whether it is; asked when a configuration is made of Megatron's arguments.
    """
    from megatron.training import arguments

    own = arguments.core_transformer_config_from_args

    @wraps(own)
    def core_transformer_config_from_args(args: Any, *positional: Any, **keywords: Any) -> Any:
        config = own(args, *positional, **keywords)
        if splits() and args.transformer_impl == ENGINE:
            delay_weight_gradients(config)
        return config

    replace(arguments, "core_transformer_config_from_args", core_transformer_config_from_args)


def require_delaying(layers: Iterable[torch.nn.Module]) -> None:
    """Refuse layers that compute weight gradients at once.

    Raises:
        RunError: one of Transformer Engine's does.
    """
    for each in layers:
        if any(own.dim() > 1 for own in each.parameters(recurse=False)) and not delays(each):
            raise RunError(
                f"{type(each).__name__} is a layer of Transformer Engine that leaves no weight gradients: make the "
                "configuration with core_transformer_config_from_args, or plan with --backward fused"
            )
