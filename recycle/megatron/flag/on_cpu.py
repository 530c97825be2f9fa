"""What stock Megatron has to be told on a machine without CUDA, for those who want to try before they have GPUs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from recycle.errors import UserError
from recycle.megatron.shared.release import find_in_megatron

ON_CPU = "--on-cpu"

VALUES = {"--distributed-backend": "gloo", "--transformer-impl": "local"}
"""Options whose defaults need CUDA, and what works without."""

SWITCHES = (
    "--use-cpu-initialization",
    "--no-masked-softmax-fusion",
    "--no-bias-gelu-fusion",
    "--no-bias-dropout-fusion",
    "--no-gradient-accumulation-fusion",
    "--no-persist-layer-norm",
)
"""Options that turn kernels off which only CUDA has."""


def settings_for_cpu(arguments: Sequence[str]) -> list[str]:
    """What is missing on a script's command line for it to train without CUDA.

    Args:
        arguments: the script's.

    Raises:
        UserError: an option has a value that needs CUDA.
    """
    given = _given(arguments)
    missing: list[str] = []
    for option, value in VALUES.items():
        found = given[option]
        if found is None:
            missing += [option, value]
        elif found != value:
            raise UserError(f"{option} {found}: it needs CUDA, and {ON_CPU} is given; leave one of them out")
    return missing + [each for each in SWITCHES if each not in arguments]


def require_without_cuda(arguments: Sequence[str]) -> None:
    """Refuse what Megatron would end with a traceback for on a machine without CUDA.

    Raises:
        UserError: processes would talk over NCCL.
    """
    option = "--distributed-backend"
    found = _given(arguments)[option]
    if found == "nccl" or (found is None and "--yaml-cfg" not in arguments):
        given = f"{option} nccl" if found else f"{option}, Megatron's default is nccl"
        raise UserError(
            f"{given}: this machine has no CUDA; put {ON_CPU} before the script, which sets what training on CPUs needs"
        )


def require_data_helpers(script: Path) -> None:
    """Refuse a source tree of Megatron-LM whose data helpers nobody has built; a package has them.

    Megatron builds them where it sets up its kernels, which is left out without CUDA.

    Args:
        script: which will be run; Megatron may lie beside it.

    Raises:
        UserError: they are missing.
    """
    folder = find_in_megatron(script, "core/datasets")
    if folder is not None and not any(folder.glob("helpers_cpp*")):
        raise UserError(
            f"{folder}: its data helpers are not built; run make -C {folder}, which needs a C++ compiler and "
            "pybind11, or copy helpers_cpp*.so from the package of the same release"
        )


def _given(arguments: Sequence[str]) -> dict[str, str | None]:
    """The values of the options whose defaults need CUDA; None for those that are not given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in VALUES:
        parser.add_argument(option, dest=option)
    try:
        return dict(vars(parser.parse_known_args(arguments)[0]))
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
