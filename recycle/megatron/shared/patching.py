"""Replacing names of Megatron and torch: each is checked for existence first, and what changed can be read."""

from typing import Any

from recycle.megatron.shared.release import RELEASES
from recycle.runtime.errors import RunError


def replace(owner: Any, name: str, value: Any) -> Any:
    """Put another object in the place of an attribute, a class in that of a class, and return what was there.

    Raises:
        RunError: there is no such attribute, so this release is another one than the patch was made for.
    """
    if not hasattr(owner, name):
        from megatron.core import __version__

        where, known = getattr(owner, "__name__", repr(owner)), ", ".join(RELEASES)
        raise RunError(
            f"megatron-core {__version__}: {where} has no {name}, which is replaced here; use one of {known}"
        )
    original = getattr(owner, name)
    # Annotations and isinstance take no function in the place of a class.
    assert isinstance(value, type) or not isinstance(original, type), name
    setattr(owner, name, value)
    return original
