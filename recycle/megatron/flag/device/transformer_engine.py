"""Transformer Engine's layers under the flag: they split their backward pass themselves, if their release can."""

from typing import Any

from recycle.megatron.shared.delayed_weights import DELAYS

ENGINE = "transformer_engine"
DELAYS_APART = "2.7.0"
"""The release from which Megatron has layers leave weight gradients that they do not add up themselves."""


def cannot_delay(arguments: Any) -> list[str]:
    """Why layers of the release that is installed cannot leave their weight gradients; empty if they can.

    Args:
        arguments: Megatron's.
    """
    if arguments.transformer_impl != ENGINE:
        return []
    from megatron.core.utils import get_te_version, is_te_min_version

    needed = DELAYS if arguments.gradient_accumulation_fusion else DELAYS_APART
    if is_te_min_version(needed):
        return []
    return [f"transformer_impl is {ENGINE}: release {get_te_version()} leaves no weight gradients; {needed} does"]
