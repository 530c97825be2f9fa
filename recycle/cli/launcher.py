"""What stands before the script on a job's command line: torchrun with its options, and ``-m recycle.megatron``."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from recycle.megatron.flag.command.on_cpu import ON_CPU, settings_for_cpu
from recycle.megatron.flag.command.option_table import Unread

TORCHRUN = (
    *("--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--standalone"),
    *("--max-restarts", "--monitor-interval", "--start-method", "--event-log-handler", "--role", "--module"),
    *("--no-python", "--run-path", "--log-dir", "--redirects", "--tee", "--local-ranks-filter", "--node-rank"),
    *("--duplicate-stdout-filters", "--duplicate-stderr-filters", "--master-addr", "--master-port", "--local-addr"),
    *("--logs-specs", "--numa-binding", "--signals-to-handle", "--shutdown-timeout", "--virtual-local-rank"),
)
"""Its options, each of which it takes with underscores as well."""


def split_at_script(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """What is before the training script, and the rest from it on; nothing before where no script is named."""
    place = next((place for place, word in enumerate(words) if word.endswith(".py")), 0)
    return words[:place], words[place:]


def for_cpu(words: Sequence[str]) -> Sequence[str] | None:
    """The command line of a job that is started with ``--on-cpu``, with what that sets; None for any other job.

    Raises:
        UserError: an option has a value that needs CUDA.
    """
    before, job = split_at_script(words)
    if ON_CPU not in before:
        return None
    return [*(each for each in before if each != ON_CPU), *job, *settings_for_cpu(job[1:])]


def unknown_to_torchrun(before: Sequence[str]) -> Iterator[Unread]:
    """Its options that are misspelt, or shortened: it completes these, and here they would be passed over."""
    if not before or Path(before[0]).name != "torchrun":
        return
    for word in before[1:]:
        name = word.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name not in TORCHRUN:
            close = get_close_matches(name, TORCHRUN, n=1, cutoff=0.8)
            yield Unread(word.partition("=")[0], f"did you mean {close[0]}?" if close else "torchrun does not know it")
