"""The same training script, in which a stage dies as soon as it can come back, and somebody else is late.

Rank 1 dies before the third norm that it takes. In the view that follows, ranks 2 and 3 die when keepers have from both
of them what it begins with; and rank 0 waits two seconds for the result of each call of all servers, and misses it if
that view is over by then. MARKS is the folder in which each of that leaves a file, so that nobody dies twice.
"""

import os
import runpy
import signal
import time
from functools import wraps
from pathlib import Path
from typing import Any

from megatron.core.optimizer import optimizer

from recycle.megatron.flag.world.collectives import Collectives
from recycle.runtime.keep.keeper_copies import Snapshot

RANK, LATE = int(os.environ["RANK"]), 2.0
get_norm, finish, call = optimizer.get_grad_norm_fp32, Snapshot.finish, Collectives.call
norms = 0


def mark_of(what: str, rank: int) -> Path:
    """That of a rank."""
    return Path(os.environ["MARKS"]) / f"{what}-{rank}"


def is_first(what: str) -> bool:
    """Whether this rank has not left such a mark; it does now."""
    mark = mark_of(what, RANK)
    there = mark.exists()
    mark.touch()
    return not there


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@wraps(get_norm)
def dying_norm(*arguments: Any, **keywords: Any) -> Any:
    global norms
    norms += 1
    if norms == 3 and RANK == 1 and is_first("norm"):
        die()
    return get_norm(*arguments, **keywords)


@wraps(finish)
def dying_finish(snapshot: Any) -> Any:
    lost = finish(snapshot)
    if snapshot._part.epoch == 1 and RANK in (2, 3) and is_first("kept"):
        while not all(mark_of("kept", each).exists() for each in (2, 3)):
            time.sleep(0.01)
        die()
    return lost


@wraps(call)
def late_call(collectives: Any, kind: str, act: Any, across: bool = False) -> Any:
    execution = collectives._recover.__self__

    def act_late() -> Any:
        result = act()
        if RANK == 0 and kind == "world" and execution.epoch == 1:
            is_first("late")
            time.sleep(LATE)
            execution._survivor._alarm_watch.check()
        return result

    return call(collectives, kind, act_late, across)


optimizer.get_grad_norm_fp32 = dying_norm
Snapshot.finish = dying_finish  # type: ignore[assignment, method-assign]
Collectives.call = late_call  # type: ignore[assignment, method-assign]
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
