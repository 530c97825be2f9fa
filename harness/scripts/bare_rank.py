"""A rank of a run under the flag without an agent above it, of servers that are all of one stage.

Usage: python bare_rank.py SCRIPT ARGUMENTS, with the variables of torchrun; the run's store is where those say.
"""

import os
import sys

from recycle.job import Server
from recycle.megatron.__main__ import run_script
from recycle.megatron.flag.command.flags import find_flags
from recycle.megatron.flag.start.protection import Protection
from recycle.runtime.net.endpoint import Endpoint

host = os.environ["MASTER_ADDR"]
servers = tuple(Server(pipeline, 0) for pipeline in range(int(os.environ["WORLD_SIZE"])))
endpoint = Endpoint(host, int(os.environ["MASTER_PORT"]), "token", host, "members")
flags, words = find_flags(sys.argv[2:])
run_script(sys.argv[1], words, Protection(servers, endpoint, flags))
