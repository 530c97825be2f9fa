"""Torch's own norms with sequence parallelism, where there are no other ones.

Megatron refuses that, though a norm of a part of a sequence is the part of the norm: all that is missing is a mark on
its parameters, of whose gradients each rank has a part.
"""

from functools import cache
from typing import Any

from megatron.core.transformer.torch_norm import WrappedTorchNorm

from recycle.megatron.shared.patching import replace


@cache
def take_parts_of_sequences() -> None:
    """From now on, torch's norms are made with sequence parallelism as well; nothing if that was done before."""
    original = WrappedTorchNorm.__new__

    def make_norm(cls: type, config: Any, *arguments: Any, **keywords: Any) -> Any:
        split, config.sequence_parallel = config.sequence_parallel, False
        try:
            norm = original(cls, config, *arguments, **keywords)
        finally:
            config.sequence_parallel = split
        for parameter in norm.parameters():
            parameter.sequence_parallel = split
        return norm

    replace(WrappedTorchNorm, "__new__", make_norm)
