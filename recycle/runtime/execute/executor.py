"""The executor: a loop over one instruction list, with a table of what each op does."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch.profiler import record_function

from recycle.plan.instruction import Instruction, Op
from recycle.record.recorder import Recorder
from recycle.runtime.device import settle
from recycle.runtime.errors import InstructionFailed, ViewBroken

Handler = Callable[[Instruction], None]


class Hooks(Protocol):
    """Something that looks on while instructions are executed, and may interfere."""

    def before(self, iteration: int, instruction: Instruction) -> None:
        """An instruction is about to begin; what is raised here ends the list."""

    def after(self, iteration: int, instruction: Instruction, seconds: float) -> None:
        """An instruction has taken so long; what this takes is recorded as a part of it."""


log = logging.getLogger(__name__)


class Executor:
    """Executes instruction lists in their order.

    Args:
        handlers: what to do for each op; every op must have one.
        recorder: gets the start and the end of every instruction but receives, whose waiting the transport records.
        hooks: what is told of every instruction.
    """

    def __init__(self, handlers: Mapping[Op, Handler], recorder: Recorder, hooks: Sequence[Hooks] = ()) -> None:
        missing = [op.value for op in Op if op not in handlers]
        assert not missing, f"no handler for {', '.join(missing)}"
        self._handlers = handlers
        self._recorder = recorder
        self._hooks = hooks

    def run(self, program: Sequence[Instruction]) -> None:
        """Execute a list from its first instruction to its last.

        Raises:
            InstructionFailed: one of them raised. The list is logged with its row marked.
            ViewBroken: somebody else is gone, and the list cannot be finished.
        """
        row = 0
        iteration = self._recorder.iteration
        try:
            for row, instruction in enumerate(program):  # noqa: B007 - the row that failed is reported
                with record_function(str(instruction)):
                    for hook in self._hooks:
                        hook.before(iteration, instruction)
                    start = self._recorder.now()
                    self._handlers[instruction.op](instruction)
                    if not instruction.op.is_transfer:
                        # A GPU is behind: times would be of calls, and what comes next could wait for what never ends.
                        settle()
                    seconds = (self._recorder.now() - start) / 1e9
                    for hook in self._hooks:
                        hook.after(iteration, instruction, seconds)
                    if not instruction.op.is_receive:
                        self._recorder.add(instruction, start, self._recorder.now())
        except ViewBroken:
            raise
        except Exception as error:
            log.error("%s", "\n".join(rows(program, row)))
            around = "\n".join(rows(program, row)[max(0, row - 3) : row + 4])
            raise InstructionFailed(
                f"{self._recorder.server}, iteration {self._recorder.iteration}, row {row}: {error}\n{around}"
            ) from error


def rows(program: Sequence[Instruction], failed: int) -> list[str]:
    """The list with numbered rows, the failing one marked."""
    return [f"{'>' if row == failed else ' '} [{row}] {instruction}" for row, instruction in enumerate(program)]
