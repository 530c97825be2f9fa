"""The command line: one module per verb, imported only when that verb is called.

What it needs is imported when it runs, so that Ctrl-C ends it from its first moment on.
"""

import atexit
import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn

_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
"""Errors of the system for want of descriptors, memory or processes."""

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


def _die(number: int) -> NoReturn:
    """End the process by a signal; as the first process of a container, which no signal ends so, with its status."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)


def _end(number: int, frame: FrameType | None) -> None:
    """Take an interrupt: a verb is told of it, and what is no verb's, or an import, ends the process at once.

    What is imported may take it for a failure of its own, and go on or fail in another way. Before and after a verb,
    nothing is to be tidied up.
    """
    above = frame
    while above is not None and not above.f_code.co_filename.startswith("<frozen importlib"):
        if above.f_code is _call.__code__:
            signal.default_int_handler(number, frame)
        above = above.f_back
    _die(number)


def _end_unheard(unraisable: "sys.UnraisableHookArgs") -> None:
    """Take an exception that nothing can catch: if it came of a signal to end, end the process at once.

    Python runs some functions whose exceptions it only prints: those around a fork, those of garbage. An interrupt that
    is taken in one of them would be lost, and the command would go on.
    """
    from recycle.errors import EndedBySignal

    if isinstance(error := unraisable.exc_value, KeyboardInterrupt | EndedBySignal):
        _die(error.number if isinstance(error, EndedBySignal) else signal.SIGINT)
    sys.__unraisablehook__(unraisable)


def _end_at_once(statuses: Sequence[int]) -> None:
    """End a process with torch in it without taking that apart, when all else is done that is done at the end.

    Python would look for garbage in all that torch and Megatron are made of, and let go of it piece by piece: up to a
    second of the processor in every process of a host.

    Args:
        statuses: with which the process ends, the last one; none where something else is to say how.
    """
    gc.freeze()
    if "torch" in sys.modules and statuses:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # full, closed, or none
                stream.flush()
        os._exit(statuses[-1])


def _call() -> NoReturn:
    from recycle.cli.surroundings import settled
    from recycle.cli.verbs import group

    with settled():
        sys.exit(group(prog_name="recycle", standalone_mode=False))


def main(*, goes_on: bool = False) -> None:
    """Run the command line; what goes wrong is one line, and the exit status says of which kind it is.

    Args:
        goes_on: whether the process goes on after it, as a program that calls it.
    """
    statuses: list[int] = []
    # What is registered first is done last.
    atexit.register(_end_at_once, () if goes_on else statuses)
    before = signal.getsignal(signal.SIGINT)
    if taken := before in (signal.default_int_handler, signal.SIG_DFL):
        # While this is imported, there is nothing to tidy up, and no traceback to show.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import click

    from recycle.cli.surroundings import give_up_unwritten
    from recycle.cli.verbs import PACKAGES
    from recycle.errors import UserError
    from recycle.wording import printable_lines

    sys.unraisablehook = _end_unheard
    try:
        if taken:
            signal.signal(signal.SIGINT, _end)
        _call()
    except SystemExit as ending:
        statuses += [ending.code or 0] if isinstance(ending.code, int | None) else []
        raise
    except UserError as error:
        message, status = str(error), error.exit_status
    except click.UsageError as error:
        verb = error.ctx.command_path if error.ctx else "recycle"
        message, status = f"{error.format_message()} ({verb} --help says more)", UserError.exit_status
    except click.ClickException as error:
        message, status = error.format_message(), UserError.exit_status
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in PACKAGES:
            raise
        message = f"{module} is not installed: pip install {PACKAGES[module]} brings it"
        status = UserError.exit_status
    except OSError as error:
        if error.errno in _SCARCE:
            message = f"the system has no more for this command: {error.strerror}; raise its limits (ulimit -a)"
        elif isinstance(error.filename, str):
            # Of a path that cannot even be asked for: a name that is too long, a folder that is closed to this user.
            message = f"{error.filename}: cannot be used: {error.strerror}"
        else:
            raise
        status = UserError.exit_status
    except MemoryError:
        message = "there is not enough memory for this command; give it more (ulimit -v), or a smaller job"
        status = UserError.exit_status
    except (click.Abort, KeyboardInterrupt):
        message, status = "interrupted", INTERRUPTED
    finally:
        if goes_on:
            signal.signal(signal.SIGINT, before)
    if sys.stderr is not None:
        with suppress(OSError):
            click.echo(f"recycle: {printable_lines(message)}", err=True)
        give_up_unwritten(sys.stderr)
    statuses.append(status)
    sys.exit(status)
