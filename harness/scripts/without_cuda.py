"""Start a script on a machine without CUDA, and do nothing else for it."""

import runpy
import sys

from recycle.megatron.flag.device.cpu_training import train_on_cpu
from recycle.runtime.net.gloo.threads import let_go

train_on_cpu()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
let_go()
