"""One gloo device for all groups of a rank."""

import os
import subprocess
import sys

import pytest

GROUPS = """
import os
import time
from datetime import timedelta
import torch
import torch.distributed as dist
from harness.processes import thread_names
from recycle.runtime.net.gloo.devices import share_devices
if {shared}:
    share_devices({address!r})
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=40))
groups = [dist.new_group([0], timeout=timedelta(seconds=50 + number)) for number in range(4)]
for group in groups:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [1, 1, 1]
timeouts = [each._get_backend(torch.device("cpu")).options._timeout.seconds for each in groups]
assert timeouts == [50, 51, 52, 53], timeouts
def count():
    return thread_names(os.getpid()).count("gloo_tcp_loop")

# A thread gets its name a moment after it was started.
end = time.monotonic() + 120
while count() < {expected} and time.monotonic() < end:
    time.sleep(0.01)
print(count(), flush=True)
# Torch may abort a process that ends while threads of gloo's are at work.
os._exit(0)
"""


def devices(shared, expected, address="", **variables):
    script = GROUPS.format(shared=shared, expected=expected, address=address)
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("variables", [{}, {"GLOO_SOCKET_IFNAME": "lo"}])
def test_all_groups_share_a_device_and_keep_their_time_outs(variables):
    assert devices(False, 5, **variables) == 5
    assert devices(True, 1, **variables) == 1
    assert devices(True, 1, "127.0.0.1", **variables) == 1


def test_an_interface_that_is_not_there_is_refused_as_torch_refuses_it():
    with pytest.raises(AssertionError, match="nowhere"):
        devices(True, 1, GLOO_SOCKET_IFNAME="nowhere")
