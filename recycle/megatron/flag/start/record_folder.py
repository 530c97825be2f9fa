"""The folder of a run's recordings: it belongs to one run that is alive, as that of ``recycle train`` does."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from recycle.control.board.run_folder import shared, taken
from recycle.megatron.flag.command.flags import RECORD


def held(folder: Path | None, *, begins: bool) -> AbstractContextManager[None]:
    """Have it, for as long as this process or one that it forks is there.

    Args:
        folder: which; None where nothing is recorded.
        begins: whether this process begins the run. Any other one takes part, once it has begun.

    Raises:
        ControlError: another run is alive in it, or it cannot be written; when it is entered.
    """
    if folder is None:
        return nullcontext()
    return taken(folder, RECORD) if begins else shared(folder)
