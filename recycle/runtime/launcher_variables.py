"""Numbers that a launcher, such as torchrun or srun, gives its processes in the environment."""

from collections.abc import Mapping

from recycle.digits import parse_whole
from recycle.runtime.errors import RunError


def number_in(environment: Mapping[str, str], name: str) -> int:
    """What a variable says.

    Args:
        environment: which has it.
        name: of the variable.

    Raises:
        RunError: it is no whole number from 0.
    """
    try:
        return parse_whole(environment[name])
    except ValueError as error:
        raise RunError(
            f"{name} is {environment[name]!r}, and must be a number: set it as torchrun or srun does"
        ) from error
