"""The end of a group."""

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore

from harness.local import launch
from harness.started import wait_until
from recycle.control.host.children import die_with
from recycle.runtime.net.gloo.connecting import LazyGroup, connect_groups
from recycle.runtime.net.gloo.groups import make_backend
from recycle.runtime.net.network import NetworkOptions

SECONDS = timedelta(seconds=120)


def connected():
    """Both ranks' parts of a group."""
    store = HashStore()
    backends = [make_backend(rank, ["W0_0", "W0_1"], NetworkOptions(SECONDS, SECONDS)) for rank in range(2)]
    groups = [LazyGroup("group", backends[rank], rank, [1 - rank]) for rank in range(2)]
    connecting = [
        threading.Thread(target=connect_groups, args=[store, [each], SECONDS, lambda: None]) for each in groups
    ]
    for each in connecting:
        each.start()
    for each in connecting:
        each.join()
    return backends


def test_who_lets_go_of_a_group_does_not_wait_for_what_is_under_way_in_it_and_which_ends():
    threads = set(threading.enumerate())
    first, second = connected()
    under_way = [first.allreduce([torch.ones(1)]), second.recv([torch.ones(1)], 0, 7)]
    assert not any(each.is_completed() for each in under_way)
    del first
    for each in under_way:
        with pytest.raises(RuntimeError):
            each.wait()
    del second, under_way, each
    wait_until(lambda: set(threading.enumerate()) <= threads)


ENDING = """
from tests.runtime.net.gloo.test_backend import connected
pairs = [connected() for _ in range(20)]
pairs.clear()
"""


def test_a_process_can_end_while_groups_do():
    """Python would end their threads in C++, which aborts the process."""
    subprocess.run([sys.executable, "-c", ENDING], check=True)


def test_a_group_ends_whose_connections_a_fork_has_as_well():
    """Gloo would hear of them after it has closed them, and end the process."""

    def body(_):
        here = os.getpid()
        for _ in range(40):
            threads = set(threading.enumerate())
            first, second = connected()
            fork = os.fork()
            if fork == 0:
                die_with(here)
                signal.pause()
            # Gloo may not have heard of it when the group ends.
            second.cut()
            del first, second
            wait_until(lambda threads=threads: set(threading.enumerate()) <= threads)
            os.kill(fork, signal.SIGKILL)
            os.waitpid(fork, 0)

    launch(1, body, lambda *_: None)
