"""Megatron's data helpers, which it builds before it trains on GPUs: with make, where it lies."""

from pathlib import Path

from recycle.errors import UserError
from recycle.megatron.shared.patching import replace
from recycle.megatron.shared.release import find_in_megatron

PLACE = "core/datasets"


def require_data_helpers(script: Path) -> None:
    """Refuse a source tree of Megatron-LM whose data helpers nobody has built; a package has them.

    Megatron builds them where it sets up its kernels, which is left out without CUDA.

    Args:
        script: which will be run; Megatron may lie beside it.

    Raises:
        UserError: they are missing.
    """
    folder = find_in_megatron(script, PLACE)
    if folder is not None and not _are_built(folder):
        raise UserError(
            f"{folder}: its data helpers are not built; run make -C {folder}, which needs a C++ compiler and "
            "pybind11, or copy helpers_cpp*.so from the package of the same release"
        )


def use_data_helpers(script: Path) -> str:
    """Have Megatron take the data helpers that its package has: it would build them, and the package has no Makefile.

    Args:
        script: which will be run; Megatron may lie beside it.

    Returns:
        What was done; empty for a source tree, where Megatron builds them as ever.
    """
    folder = find_in_megatron(script, PLACE)
    if folder is None or (folder / "Makefile").exists() or not _are_built(folder):
        return ""
    from megatron.core.datasets import utils

    replace(utils, "compile_helpers", lambda: None)
    return f"{folder} has data helpers and no Makefile: they are taken as they are"


def _are_built(folder: Path) -> bool:
    return any(folder.glob("helpers_cpp*"))
