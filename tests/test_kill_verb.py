"""``recycle kill``: the workers of one run, and of no other."""

import os
import socket
import subprocess
import sys

import pytest

from harness.recordings import write_events
from recycle.record.processes import Processes
from recycle.record.recording import FORMAT, VERSION, ProcessLine, RunLine

TITLED = "import setproctitle, time, sys; setproctitle.setproctitle(sys.argv[1]); print(flush=True); time.sleep(600)"


@pytest.fixture
def process():
    started = []

    def start(title):
        started.append(subprocess.Popen([sys.executable, "-c", TITLED, title], stdout=subprocess.PIPE))
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def record(folder, name, pid, host=None):
    head = RunLine(FORMAT, VERSION, "run", "us", "measured")
    write_events(folder, {name: [head, ProcessLine(name, pid, host or socket.gethostname())]})


def test_the_newest_process_of_a_server_is_killed_and_nobody_else(run, refused, process, tmp_path):
    first, newest, other, stranger = (process("recycle: W1_2") for _ in range(4))
    record(tmp_path / "run", "W1_2", first.pid)
    record(tmp_path / "run", "W1_2#1", newest.pid)
    record(tmp_path / "run", "W0_0", other.pid)
    record(tmp_path / "other", "W1_2", stranger.pid)
    status, out, _ = run("kill", tmp_path / "run", "W1_2,W1_2")
    assert (status, out) == (0, f"W1_2 is killed: process {newest.pid}\n")
    assert newest.wait(60) == -9
    assert [each.poll() for each in (first, other, stranger)] == [None] * 3
    assert f"W1_2 is not running: its process {newest.pid} has ended" in refused("kill", tmp_path / "run", "W1_2")


def test_several_are_asked_to_leave_or_none_is(run, process, tmp_path):
    workers = [process(f"recycle: W{number}_0") for number in range(2)]
    for number, each in enumerate(workers):
        record(tmp_path, f"W{number}_0", each.pid)
    assert run("kill", tmp_path, "W0_0,W7_7")[0] == 2
    assert [each.poll() for each in workers] == [None] * 2
    assert run("kill", tmp_path, "W0_0,W1_0", "--leave")[0] == 0
    assert [each.wait(60) for each in workers] == [-15] * 2


def test_whose_number_is_another_programs_by_now_is_not_killed(run, process, tmp_path):
    for title in ("recycle: W1_20", "recycle: agent of W1_2", "python W1_2"):
        each = process(title)
        record(tmp_path, "W1_2", each.pid)
        status, _, err = run("kill", tmp_path, "W1_2")
        assert (status, "is not running" in err, each.poll()) == (2, True, None)


@pytest.mark.parametrize(
    ("servers", "message"),
    [("W9_9", "W9_9 is no server of this run"), ("W1-2", "server 'W1-2'"), ("W0_0", "W0_0 runs on far: kill it there")],
)
def test_what_cannot_be_killed_is_a_line(refused, tmp_path, servers, message):
    record(tmp_path, "W0_0", os.getpid(), "far")
    assert message in refused("kill", tmp_path, servers)


def test_a_folder_that_is_no_run_is_a_line(refused, tmp_path):
    assert "there is no run here" in refused("kill", tmp_path, "W0_0")


def test_an_older_life_that_is_read_later_is_not_the_newest():
    processes = Processes()
    for name, pid in (("W0_0#2", 3), ("W0_0", 1), ("W0_0#10", 4), ("W0_0#9", 2)):
        processes.add(ProcessLine(name, pid, "here"))
    assert processes.of("W0_0").pid == 4
    assert processes.of("W0_1") is None
