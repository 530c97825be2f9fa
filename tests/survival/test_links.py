"""Runs over hosts that all reach the store, of which two do not reach each other."""

import subprocess
import sys
import time

import pytest

from harness.hosts import hosts, missing
from harness.started import TRAIN, losses, small_run, wait_until

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(400)]

NAMED = "no data comes through between host2 (W1_0) and host3 (W2_0), though both give signs of life"
LEFT_OUT = "W2_0 is left out: no data comes through between host2 (W1_0) and host3 (W2_0)"


@pytest.fixture
def three(start_each, tmp_path):
    """Hosts with a server each, and the run's processes on them, which have begun to train."""
    words = [*TRAIN, *small_run(tmp_path / "run", 3, 1, 20_000, "--restarts", "0")]
    with hosts(3) as found:
        yield found, start_each(words, found)


LISTENS = """
import socket
with socket.create_server(("host1", 5000)) as listener:
    print("listens", flush=True)
    connection, _ = listener.accept()
    while connection.recv(1 << 16):
        pass
"""
SENDS = """
import os, socket, time
from recycle.runtime.net.gloo.sockets import unanswered
with socket.create_connection(("host1", 5000)) as connection:
    connection.sendall(b"x")
    print("has sent", flush=True)
    while not os.path.exists("{refused}"):
        time.sleep(0.01)
    assert not unanswered()
    connection.sendall(b"x")
    while not (found := unanswered()):
        time.sleep(0.01)
    print("unanswered:", *found, flush=True)
    os._exit(0)
"""


def goes_on(run, folder):
    """Whether a run makes iterations that it has not made before."""
    made = max(losses(folder))
    wait_until(lambda: max(losses(folder)) > made + 5)
    return run.process.poll() is None


def test_two_hosts_between_which_the_link_is_cut_are_named_and_the_run_goes_on_without_one(three, tmp_path):
    found, ranks = three
    found[1].cut_link(found[2])
    ranks[0].wait_for(NAMED)
    ranks[0].wait_for("after 20 s the run goes on without host3")
    ranks[0].wait_for(LEFT_OUT)
    ranks[0].wait_for(": 2 of 3 servers")
    assert goes_on(ranks[0], tmp_path / "run")
    assert ranks[0].output.count("no data comes through between") == 2
    assert "died" not in ranks[0].output


def test_where_the_own_kernel_lets_nothing_out_the_other_end_counts_as_one_that_does_not_answer(start, tmp_path):
    """Then nothing is under way that could be acknowledged."""
    refused = tmp_path / "refused"
    with hosts(2) as (one, other):
        start([sys.executable, "-c", LISTENS], one).wait_for("listens")
        sends = start([sys.executable, "-c", SENDS.format(refused=refused)], other)
        sends.wait_for("has sent")
        other.refuse_to_send(one)
        refused.touch()
        sends.wait_for(f"unanswered: {one.address}")


@pytest.mark.long
@pytest.mark.parametrize("seconds", [10, 15, 18])
def test_a_link_that_carries_again_in_time_costs_no_host(three, tmp_path, seconds):
    found, ranks = three
    found[1].cut_link(found[2])
    time.sleep(seconds)
    found[1].mend_link(found[2])
    assert goes_on(ranks[0], tmp_path / "run")
    assert "left out" not in ranks[0].output
    assert "of 3 servers" not in ranks[0].output.partition(": 3 of 3 servers")[2]


@pytest.mark.long
def test_a_link_that_loses_large_packets_is_named(three, tmp_path):
    found, ranks = three
    found[2].lose_large_packets(600)
    ranks[0].wait_for("no data comes through between host")
    ranks[0].wait_for("W2_0 is left out")
    ranks[0].wait_for(": 2 of 3 servers")
    assert goes_on(ranks[0], tmp_path / "run")


@pytest.mark.long
def test_a_view_that_two_hosts_cannot_build_because_they_do_not_reach_each_other_is_left_by_one(three, tmp_path):
    found, ranks = three
    found[1].cut_link(found[2])
    subprocess.run(found[0].command("pkill", "-KILL", "-f", "recycle: W0_0"), check=True)
    ranks[0].wait_for(NAMED)
    ranks[0].wait_for(LEFT_OUT)
    ranks[0].wait_for(": 1 of 3 servers")
    assert goes_on(ranks[0], tmp_path / "run")
