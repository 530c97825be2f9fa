"""What releases of Megatron import though little of it is used, and what stands in for it where it is not there."""

import importlib.util
import sys
import typing
from collections.abc import Callable
from types import ModuleType

import typing_extensions

from recycle.megatron.shared.release import RELEASES

KERNELS = (
    "megatron.core.transformer.custom_layers.batch_invariant_kernels",
    "megatron.core.transformer.moe.paged_stash",
)
"""Modules that need Triton even to be imported; each is for one option."""


class NeedsTriton(ModuleType):
    """In the place of such a module: everything can be imported from it, and nothing called."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        """A function that says what is missing."""
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> None:
            raise NotImplementedError(f"{name} needs Triton, which is not installed")

        return refuse


def stand_in_for_triton() -> None:
    """Put something in the place of modules that need it; nothing where it is installed."""
    if importlib.util.find_spec("triton") is None:
        for name in KERNELS:
            sys.modules.setdefault(name, NeedsTriton(name))


def stand_in_for_python(needed: tuple[int, int]) -> str:
    """Put what an older Python lacks where Megatron looks for it.

    Args:
        needed: the oldest Python that has it all.

    Returns:
        What was done; empty where there was nothing to do.
    """
    if sys.version_info >= needed:
        return ""
    typing.override = typing_extensions.override  # type: ignore[attr-defined]
    return f"Python {needed[0]}.{needed[1]} is not here: typing.override is that of typing_extensions"


def make_importable() -> None:
    """Both, for whoever looks at the training code of any release on a machine without CUDA."""
    stand_in_for_triton()
    stand_in_for_python(max(release.python for release in RELEASES.values()))
