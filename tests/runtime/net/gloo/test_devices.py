"""One gloo device for all groups of a rank."""

import os
import subprocess
import sys

import pytest

from harness.hosts import hosts, leave_few_ports, missing, no_port_free
from harness.local import launch
from recycle.runtime.net.gloo.groups import make_backend
from recycle.runtime.net.network import NetworkOptions

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


@pytest.mark.skipif(bool(missing()), reason="a network with few ports takes root on Linux")
def test_where_no_port_is_free_the_address_is_not_blamed():
    with hosts(1) as (host,):
        leave_few_ports(host)

        def body(member):
            host.enter_network()
            said = (
                f"nothing can listen at {host.address}: no port is free here .*: net.ipv4.ip_local_port_range is 40000"
            )
            with no_port_free(), pytest.raises(OSError, match=said):
                make_backend(0, ["W0_0"], NetworkOptions(address=host.address))

        launch(1, body)
