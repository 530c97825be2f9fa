"""The same training script, which waits before an iteration while a file called after it is in the folder HELD."""

import os
import runpy
from pathlib import Path

from harness.waiting import Held, wait_between

wait_between(Held(Path(os.environ["HELD"])))
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
