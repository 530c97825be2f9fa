"""Hosts that are made of namespaces: what they share, and what they do not."""

import subprocess
import sys

import pytest

from harness.hosts import hosts, missing

WHY_NOT = missing()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

ANSWER = (
    "import socket; s = socket.create_server(('0.0.0.0', 7000)); print('here', flush=True); c, who = s.accept(); "
    "c.sendall(socket.gethostname().encode())"
)
ASK = "import socket; s = socket.create_connection(('{}', 7000), timeout=120); print(s.recv(100).decode())"


def python(host, program):
    words = host.command(sys.executable, "-c", program)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def three():
    with hosts(3) as found:
        yield found


def test_hosts_reach_each_other_by_name_and_see_only_their_own_processes(three):
    first, second, _ = three
    with python(first, ANSWER) as answering:
        assert answering.stdout.readline() == "here\n"
        with python(second, ASK.format("host1")) as asking:
            assert asking.communicate(timeout=120)[0] == "host1\n"
    seen = subprocess.run(second.command("ps", "ax", "-o", "args="), capture_output=True, text=True, check=True).stdout
    assert len(seen.splitlines()) == 2, seen  # its first one, and ps


def test_a_pulled_plug_is_silent_and_can_be_pushed_again(three):
    first, _, third = three
    with python(first, ANSWER) as answering:
        assert answering.stdout.readline() == "here\n"
        first.pull_plug()
        with python(third, ASK.format(first.address).replace("timeout=120", "timeout=0.5")) as asking:
            assert "Error" in asking.communicate(timeout=120)[1]
        assert answering.poll() is None
        first.push_plug()
        with python(third, ASK.format(first.address)) as asking:
            assert asking.communicate(timeout=120)[0] == "host1\n"


def test_a_crash_kills_everything_on_a_host_and_nothing_elsewhere(three):
    _, second, third = three
    waiting = "print('here', flush=True); import time; time.sleep(300)"
    with python(third, waiting) as one, python(third, waiting) as two, python(second, waiting) as other:
        for each in (one, two, other):
            assert each.stdout.readline() == "here\n"
        third.crash()
        for victim in (one, two):
            victim.wait(120)
        assert other.poll() is None
        other.kill()


def test_nothing_is_left_of_the_hosts_of_a_process_that_was_killed():
    program = (
        "import subprocess, time\nfrom harness.hosts import hosts\n"
        "with hosts(2) as h:\n subprocess.run(h[0].command('sh', '-c', 'echo here; exec sleep 300'))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == "here\n"
        owner.kill()
        # The pipe is closed when the last process on the host is gone.
        owner.stdout.read()
    with hosts(1):
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"recycle-{owner.pid}-" not in listed
