"""Options of Megatron's that change no result and that a plan has no use for: they are left out, and a line says so."""

from collections.abc import Sequence

LEFT_OUT = {
    "--overlap-grad-reduce": "gradients are summed as a whole when a stage has all of its own",
    "--overlap-param-gather": "parameters are given to all peers when they are stepped",
    "--defer-embedding-wgrad-compute": "a plan says when weight gradients are computed",
}
"""Why, by option; all are switches."""


def leave_out(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line without them, and those that were on it.

    Args:
        words: of the script and its arguments.
    """
    found = [each for each in LEFT_OUT if each in words]
    return [each for each in words if each not in found], found
