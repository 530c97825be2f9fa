"""What stock Megatron has to be told on a machine without CUDA, for those who want to try before they have GPUs."""

import argparse
from collections.abc import Sequence

from recycle.errors import UserError
from recycle.megatron.flag.command.flags import parse_known

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
    given = given_values(arguments, *VALUES)
    for option, found in given.items():
        if found not in (None, VALUES[option]):
            raise UserError(f"{option} {found}: it needs CUDA, and {ON_CPU} is given; leave one of them out")
    missing = [word for option in VALUES if given[option] is None for word in (option, VALUES[option])]
    return missing + [each for each in SWITCHES if each not in arguments]


def require_without_cuda(arguments: Sequence[str]) -> None:
    """Refuse what Megatron would end with a traceback for on a machine without CUDA.

    Raises:
        UserError: processes would talk over NCCL.
    """
    option = "--distributed-backend"
    found = given_values(arguments, option)[option]
    if found == "nccl" or (found is None and "--yaml-cfg" not in arguments):
        given = f"{option} nccl" if found else f"{option}, Megatron's default is nccl"
        raise UserError(
            f"{given}: this machine has no CUDA; put {ON_CPU} before the script, which sets what training on CPUs needs"
        )


def given_values(arguments: Sequence[str], *options: str) -> dict[str, str | None]:
    """The values of some of a script's options; None for those that are not given.

    Raises:
        UserError: a value is missing.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in options:
        parser.add_argument(option, dest=option)
    return dict(vars(parse_known(parser, arguments)[0]))
