"""The same training script, which takes its time for as long as the file that PACE names is there.

So a server that was started again can come back: between two iterations, the others wait until it asks for that. Where
PACE_SECONDS is set, iterations take so many seconds each instead.
"""

import os
import runpy
import time
from functools import wraps
from pathlib import Path
from typing import Any

from megatron.training import training

from harness.waiting import ForReturn, wait_between

slow, seconds = Path(os.environ["PACE"]), os.environ.get("PACE_SECONDS")
train_step, for_return = training.train_step, ForReturn()


@wraps(train_step)
def paced(*arguments: Any, **keywords: Any) -> Any:
    if slow.exists():
        time.sleep(float(seconds or 0))
    return train_step(*arguments, **keywords)


if seconds is None:
    wait_between(lambda survivor: slow.exists() and for_return(survivor))
else:
    training.train_step = paced
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
