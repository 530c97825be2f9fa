"""The end of a process in which gloo has worked."""

import ctypes
import hashlib
import subprocess
import sys
import threading

from recycle.runtime.net.gloo.threads import NAME, let_go

SET_NAME = 15
LIBRARY = ctypes.CDLL(None)
SUM_AND_END = """
import os
import torch
import torch.distributed as dist
from harness.processes import thread_names
from recycle.runtime.net.gloo.threads import NAME, let_go
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1000))
names = thread_names(os.getpid())
assert NAME in names, names
let_go()
"""


def test_it_waits_for_threads_of_that_name_that_are_at_work():
    done = []
    named, asleep = threading.Event(), threading.Event()

    def work():
        LIBRARY.prctl(SET_NAME, NAME.encode())
        named.set()
        # One long call without Python's lock: a thread that asks for the lock looks idle.
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 1_000_000)
        done.append(True)
        asleep.wait()

    thread = threading.Thread(target=work)
    thread.start()
    named.wait()
    let_go()
    assert done
    asleep.set()
    thread.join()


def test_torch_still_calls_them_so():
    subprocess.run([sys.executable, "-c", SUM_AND_END], check=True)
