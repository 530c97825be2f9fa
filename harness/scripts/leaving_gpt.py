"""The same training script, of which a rank ends without an error before an iteration: ``LEAVES=RANK:ITERATION``.

A rank that was started again goes on, as the file says that LEFT names. Standstills are noticed sooner than else.
"""

import os
import runpy
import sys
from functools import wraps
from pathlib import Path
from typing import Any

from megatron.training import get_args, training

from recycle.runtime.recover import standstill

standstill.LEAST = 3.0

rank, iteration = map(int, os.environ["LEAVES"].split(":"))
train_step, left = training.train_step, Path(os.environ["LEFT"])


@wraps(train_step)
def train_or_leave(*arguments: Any, **keywords: Any) -> Any:
    if int(os.environ["RANK"]) == rank and get_args().curr_iteration + 1 >= iteration and not left.exists():
        left.touch()
        sys.exit(0)
    return train_step(*arguments, **keywords)


training.train_step = train_or_leave
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
