"""Has torch's operators on pretended GPUs computed by the CPU, as soon as a process imports torch.

``scripts/pretend-gpu`` puts it where Python imports it at its start.
"""

import ctypes
import os
import sys
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

OPERATORS = os.environ.get("PRETENDED_OPERATORS", "")


class Finder(MetaPathFinder):
    """Finds torch, once, and has ``take_over`` follow its import."""

    def find_spec(self, name, path, target=None):
        """See MetaPathFinder."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        found = PathFinder.find_spec(name, path, target)
        load = found.loader.exec_module

        def exec_module(module):
            load(module)
            take_over(module)

        found.loader.exec_module = exec_module
        return found


def take_over(torch):
    """Have the CPU compute, and turn off what would compile kernels, or choose those that only GPUs have."""
    with _quiet():
        ctypes.CDLL(OPERATORS).pretended_operators()
    for name in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)


@contextmanager
def _quiet():
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
