"""Has torch's operators on pretended GPUs computed by the CPU, as soon as a process imports torch.

``scripts/pretend-gpu`` puts it where Python imports it at its start.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

OPERATORS = os.environ.get("PRETENDED_OPERATORS", "")


class Finder(MetaPathFinder):
    """Finds torch, once, and has ``take_over`` follow its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See MetaPathFinder."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        found = PathFinder.find_spec(fullname, path, target)
        if found is None:
            return None
        loader: Any = found.loader
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            take_over(module)

        loader.exec_module = exec_module
        return found


def take_over(torch: Any) -> None:
    """Have the CPU compute, and turn off what would compile kernels, or choose those that only GPUs have."""
    with _quiet():
        ctypes.CDLL(OPERATORS).pretended_operators()
    for name in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch warns of each kernel that is taken over."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        with suppress(OSError):
            os.close(kept)
            os.close(nowhere)


if OPERATORS:
    sys.meta_path.insert(0, Finder())
