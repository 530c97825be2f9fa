"""Options of Megatron's that change no result and that a plan has no use for: they are left out, and a line says so."""

from collections.abc import Sequence

LEFT_OUT = {
    "--overlap-param-gather-with-optimizer-step": "parameters are given to peers when all are stepped",
    "--defer-embedding-wgrad-compute": "a plan says when weight gradients are computed",
    "--overlap-moe-expert-parallel-comm": "a plan says in which order micro-batches are computed",
    "--delay-wgrad-compute": "a plan says when weight gradients are computed",
    "--ep-overlap-early-attn-memory-release": "it is a part of --overlap-moe-expert-parallel-comm",
    "--num-distributed-optimizer-instances": "peers hold each shard twice as it is",
    "--ckpt-assume-constant-structure": "which rank writes which part of a checkpoint changes with failures",
    "--distributed-timeout-seconds-after-init": "a server that comes back would wait for all others to set it",
}
"""Why, by option."""

WITH_VALUE = ("--num-distributed-optimizer-instances", "--distributed-timeout-seconds-after-init")
"""Those that take a value; all others are switches."""


def leave_out(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line without them, and those that were on it.

    Args:
        words: of the script and its arguments.
    """
    names = [word.partition("=")[0] for word in words]
    left = [
        word
        for place, word in enumerate(words)
        if names[place] not in LEFT_OUT and (place == 0 or words[place - 1] not in WITH_VALUE)
    ]
    return left, [each for each in LEFT_OUT if each in names]
