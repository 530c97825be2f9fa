"""The same training script, which waits before an iteration while a file called after it is in the folder HELD."""

import os
import runpy
from pathlib import Path

from megatron.training import get_args

from harness.waiting import Held, wait_between

# A survivor does not count Megatron's iterations.
wait_between(Held(Path(os.environ["HELD"]), lambda _: int(get_args().curr_iteration)))
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
