"""Copies of a GPT's versions in the memory of keepers: how much they take, and who makes them."""

from recycle.job import Server
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run import Run
from recycle.megatron.gpt.server import GptServer
from recycle.record.recording import InstantLine
from recycle.record.reporting import Reporter
from recycle.runtime.errors import RunError
from recycle.runtime.keep.keeping import Keeping
from recycle.runtime.recover.view_reports import now
from recycle.state.client import KeeperClient
from recycle.state.keeper import keeper_address
from recycle.state.ladder import MOST
from recycle.state.memory import available_memory
from recycle.state.placement import place_copies, survival
from recycle.wording import memory_text

VALUE, COUNTERS = 4, 12
"""Bytes of a parameter or moment, which are kept in full precision, and of what is counted for each tensor."""

SLACK = 1 << 16
"""Bytes for what belongs to no parameter."""


def version_bytes(options: ModelOptions, depth: int) -> int:
    """The most bytes that a version of the whole model has: parameters, and what the optimizer knows of them.

    Args:
        options: the model.
        depth: in how many stages.
    """
    width, layers = options.hidden, options.layers
    values = layers * (12 * width * width + 13 * width) + options.sequence * width + 2 * width
    # Tied, the last stage has a copy of what the first one has.
    heads = 1 if options.tied and depth == 1 else 2
    values += heads * options.vocabulary * width
    tensors = 12 * layers + 5
    moments = {"adamw": 2, "sgd": 1 if options.momentum else 0}[options.optimizer]
    return values * VALUE * (1 + moments) + tensors * COUNTERS + SLACK


def keeper_limit(run: Run) -> int:
    """The most bytes that the keeper of this host holds; 0 where nothing is kept in memory.

    Raises:
        StateError: there are not so many hosts.
        RunError: this host has not got the memory.
    """
    if not run.copies:
        return 0
    place_copies([run.host], run.copies)
    limit = MOST * version_bytes(run.model, run.plan.job.depth)
    left = available_memory()
    if limit > left:
        raise RunError(
            f"keep-in-memory: {MOST} versions of this model take {memory_text(limit, 'B')}, and this host has "
            f"{memory_text(left, 'B')} left; take a smaller model or a host with more memory, or leave it off"
        )
    return limit


def describe_keeping(run: Run) -> str:
    """What copies in memory cost and survive, in a line."""
    whole = version_bytes(run.model, run.plan.job.depth)
    placed = place_copies([run.host], run.copies)
    each, most = memory_text(whole, "B"), memory_text(MOST * whole, "B")
    return (
        f"{each} for every iteration, at most {most} in all with this host's keeper; the loss of all servers of a "
        f"stage is survived, and that of a host with {survival(len(placed), placed, 1):.0%}"
    )


def make_keeping(run: Run, trained: GptServer, server: Server, token: str, reporter: Reporter) -> Keeping | None:
    """What puts a server's parts of its versions with the keeper of its host, and gets versions from there.

    Args:
        run: says whether anything is kept.
        trained: the server's training.
        server: which.
        token: the run's.
        reporter: is told what the user should know.
    """
    if not run.copies:
        return None

    def warn(text: str) -> None:
        reporter.tell(InstantLine("warning", now(), str(server), text))

    keeper = KeeperClient(keeper_address(token), token, "this host's keeper")
    return Keeping([keeper], server, run.plan.job.depth, trained.training, lambda: trained.view, warn)
