"""The signal that Megatron itself takes for a checkpoint and the end of the run, where it is asked to."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from recycle.errors import UserError
from recycle.megatron.flag.command.on_cpu import given_values
from recycle.runtime.launch.process.signals import TAKEN

OPTION, SWITCH = "--exit-signal", "--exit-signal-handler"

UNUSABLE = {
    signal.SIGKILL: "no process can take it",
    signal.SIGSTOP: "no process can take it",
    signal.SIGCHLD: "a process has it whenever one ends that it has started",
}


def exit_signal(words: Sequence[str]) -> signal.Signals:
    """The signal; SIGTERM where Megatron takes none.

    Args:
        words: the script's arguments.

    Raises:
        UserError: nothing can be told by it.
    """
    given = given_values(words, OPTION)[OPTION] or signal.SIGTERM.name
    if SWITCH not in words:
        return signal.SIGTERM
    try:
        found = signal.Signals[given]
    except KeyError as error:
        raise UserError(f"{OPTION} {given}: it is no signal; give SIGTERM or SIGUSR2") from error
    if found in UNUSABLE:
        raise UserError(f"{OPTION} {found.name}: {UNUSABLE[found]}; give SIGTERM or SIGUSR2")
    return found


@contextmanager
def taken(number: int, pass_on: Callable[[], object]) -> Iterator[None]:
    """Within it, this process takes the signal for the worker below it.

    Args:
        number: of the signal. Those that tell this process to end are taken elsewhere.
        pass_on: called from its handler.
    """
    if number in TAKEN:
        yield
        return
    before = signal.signal(number, lambda *_: pass_on())
    try:
        yield
    finally:
        signal.signal(number, before)
