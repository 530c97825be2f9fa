"""The same training script, in which a rank is late where the state is taken over, and others die there.

Ranks that DYING names die when rank 0 has the state with which their first view begins. Rank 1 is late for that view.
MARKS is the folder in which they leave files, so that nobody does it twice.
"""

import os
import runpy
import signal
import time
from functools import wraps
from pathlib import Path
from typing import Any

from recycle.megatron.flag.state.rejoin_state import RejoinState
from recycle.runtime.recover.rebuilding import Groups

RANK, MARKS = int(os.environ["RANK"]), Path(os.environ["MARKS"])
DYING = [int(each) for each in os.environ["DYING"].split(",")]
adopt, build = RejoinState.adopt, Groups.build


@wraps(adopt)
def marked_adopt(state: Any, *arguments: Any) -> None:
    adopt(state, *arguments)
    (MARKS / f"there-{RANK}").touch()


@wraps(build)
def late_build(groups: Any, view: Any, *arguments: Any) -> Any:
    network, mark = build(groups, view, *arguments), MARKS / f"built-{RANK}"
    is_first = not mark.exists()
    mark.touch()
    while is_first and RANK in (1, *DYING):
        if RANK in DYING and (MARKS / "there-0").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        groups._alarm_watch.check()
        time.sleep(0.01)
    return network


RejoinState.adopt = marked_adopt  # type: ignore[assignment, method-assign]
Groups.build = late_build  # type: ignore[assignment, method-assign]
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
