"""The executor: a loop over one instruction list, with a table of what each op does."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from torch.profiler import record_function

from recycle.errors import UserError
from recycle.plan.instruction import Instruction, Op
from recycle.record.recorder import Moment, Recorder
from recycle.runtime.errors import InstructionFailed, ViewBroken
from recycle.runtime.net.network import Transfer
from recycle.runtime.net.stop_line import NO_LINE, Line

Handler = Callable[[Instruction], Transfer | None]
"""Carries out an instruction; gives what the device receives before it, if the host has not waited for that."""


class Hooks(Protocol):
    """Something that looks on while instructions are executed, and may interfere."""

    def before(self, iteration: int, instruction: Instruction) -> None:
        """An instruction is about to begin; what is raised here ends the list."""

    def after(self, iteration: int, instruction: Instruction, seconds: Callable[[], float]) -> None:
        """An instruction was started; what this takes is recorded as a part of it.

        Args:
            iteration: in which it is.
            instruction: it.
            seconds: waits for its end, and says how long it has taken.
        """


RUN_AHEAD = 2
"""Instructions that compute and may be under way on a device while the next one is started there. One that waits keeps
the device busy, and a list that ends early has little left to do."""

log = logging.getLogger(__name__)


class Computing(NamedTuple):
    """An instruction that computes, perhaps with what is still to come, until a moment."""

    received: Transfer | None
    end: Moment


class Executor:
    """Executes instruction lists in their order.

    Args:
        handlers: what to do for each op; every op must have one.
        recorder: gets the start and the end of every instruction but receives, whose waiting the transfers record. Its
            clock is that of the device on which the handlers compute.
        hooks: what is told of every instruction.
    """

    def __init__(self, handlers: Mapping[Op, Handler], recorder: Recorder, hooks: Sequence[Hooks] = ()) -> None:
        missing = [op.value for op in Op if op not in handlers]
        assert not missing, f"no handler for {', '.join(missing)}"
        self._handlers = handlers
        self._recorder = recorder
        self._hooks = hooks

    def run(self, program: Sequence[Instruction], line: Line = NO_LINE) -> None:
        """Execute a list from its first instruction to its last.

        A device is given the next instruction before it is done with the last one, or has got what that computes with.
        All has been received at the end.

        Args:
            program: the list.
            line: where the ranks of the server stop if it ends early.

        Raises:
            InstructionFailed: one of them raised. The list is logged with its row marked.
            UserError: one of them cannot do what the user asks for.
            ViewBroken: somebody else is gone, and the list cannot be finished.
        """
        row = 0
        recorder, iteration = self._recorder, self._recorder.iteration
        under_way: deque[Computing] = deque()
        try:
            for row, instruction in enumerate(program):
                line.enter(row)
                with record_function(str(instruction)):
                    if len(under_way) == RUN_AHEAD:
                        oldest = under_way.popleft()
                        _await(oldest.received, line)
                        oldest.end.wait()
                    for hook in self._hooks:
                        hook.before(iteration, instruction)
                    start = recorder.mark()
                    received = self._handlers[instruction.op](instruction)
                    for hook in self._hooks:
                        hook.after(iteration, instruction, partial(self._seconds, start, received, line))
                    end = recorder.mark()
                    if not instruction.op.is_receive:
                        recorder.add(instruction, start, end)
                    if instruction.op.is_compute:
                        under_way.append(Computing(received, end))
            for each in under_way:
                _await(each.received, line)
        except (UserError, ViewBroken):
            raise
        except Exception as error:
            log.error("%s", "\n".join(rows(program, row)))
            around = "\n".join(rows(program, row)[max(0, row - 3) : row + 4])
            raise InstructionFailed(
                f"{self._recorder.server}, iteration {self._recorder.iteration + 1}, row {row}: {error}\n{around}"
            ) from error

    def _seconds(self, start: Moment, received: Transfer | None, line: Line) -> float:
        _await(received, line)
        return self._recorder.seconds_since(start)


def _await(received: Transfer | None, line: Line) -> None:
    try:
        if received is not None:
            received.wait()
    except ViewBroken as error:
        line.bear(error)


def rows(program: Sequence[Instruction], failed: int) -> list[str]:
    """The list with numbered rows, the failing one marked."""
    return [f"{'>' if row == failed else ' '} [{row}] {instruction}" for row, instruction in enumerate(program)]
