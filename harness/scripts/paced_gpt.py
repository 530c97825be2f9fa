"""The same training script, whose iterations take three seconds each for as long as the file that PACE names is there.

So a server that was started again has the time to come back. PACE_SECONDS names another time.
"""

import os
import runpy
import time
from functools import wraps
from pathlib import Path
from typing import Any

from megatron.training import training

slow = Path(os.environ["PACE"])
train_step = training.train_step


@wraps(train_step)
def paced(*arguments: Any, **keywords: Any) -> Any:
    if slow.exists():
        time.sleep(float(os.environ.get("PACE_SECONDS", "3")))
    return train_step(*arguments, **keywords)


training.train_step = paced
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
