"""The same training script, each rank of which starts two helpers: one below it, and one in a session of its own.

HELPER marks them in their environment; they end after ten minutes.
"""

import os
import runpy
import subprocess
from pathlib import Path

for apart in (False, True):
    marked = os.environ | {"HELPS": os.environ["HELPER"]}
    silent = subprocess.DEVNULL
    subprocess.Popen(["sleep", "600"], env=marked, stdin=silent, stdout=silent, stderr=silent, start_new_session=apart)
runpy.run_path(str(Path(__file__).with_name("pretrain_small_gpt.py")), run_name="__main__")
