"""The same training script, in which ranks 1 and 2 are late where a server leaves: others have gone on without it.

That is where all enter the first view, with ``--recycle-dead``, and where all settle what they have before it leaves.
"""

import os
import runpy
import time
from functools import wraps
from pathlib import Path
from typing import Any

from recycle.megatron.flag.run.protected import ProtectedExecution
from recycle.runtime.errors import ViewBroken

IS_LATE = int(os.environ["RANK"]) in (1, 2)
connect, settle, let_in = ProtectedExecution.connect, ProtectedExecution.settle, ProtectedExecution.let_in
boundaries: list[int] = []


def await_alarm(execution: Any) -> None:
    """Until others have left this rank behind, which raises."""
    while True:
        execution._survivor._alarm_watch.check()
        time.sleep(0.01)


@wraps(connect)
def late_connect(execution: Any, *arguments: Any) -> None:
    connect(execution, *arguments)
    if IS_LATE and execution.epoch == 0 and execution._protection.flags.dead:
        await_alarm(execution)


@wraps(settle)
def late_settle(execution: Any) -> None:
    settle(execution)
    if IS_LATE and boundaries and execution._survivor.is_parting:
        try:
            await_alarm(execution)
        except ViewBroken as error:
            execution.recover(error)


@wraps(let_in)
def late_let_in(execution: Any) -> None:
    boundaries.append(execution.epoch)
    let_in(execution)
    boundaries.clear()


ProtectedExecution.connect = late_connect  # type: ignore[assignment, method-assign]
ProtectedExecution.settle = late_settle  # type: ignore[assignment, method-assign]
ProtectedExecution.let_in = late_let_in  # type: ignore[assignment, method-assign]
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
