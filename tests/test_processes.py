"""What tests and benchmarks ask of other processes, which may end at any moment."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from harness import processes
from harness.started import wait_until

ROOT = Path(__file__).resolve().parents[1]
OF_ENDED = {
    "title": "",
    "environment": {},
    "is_running": False,
    "seconds_of": 0.0,
    "seconds_waited": 0.0,
    "parent": None,
    "ancestors": [],
    "children": [],
    "thread_names": [],
    "open_files": {},
}


@pytest.mark.parametrize("name", OF_ENDED)
def test_a_process_that_has_ended_has_nothing(name):
    process = subprocess.Popen(["true"])
    process.wait()
    assert getattr(processes, name)(process.pid) == OF_ENDED[name]
    processes.send_signal(process.pid, signal.SIGKILL)


def test_a_process_that_has_ended_and_was_not_asked_about_runs_no_more():
    with subprocess.Popen(["true"]) as process:
        wait_until(lambda: not processes.is_running(process.pid))
        assert processes.parent(process.pid) == os.getpid()
        assert processes.title(process.pid) == ""


@pytest.mark.parametrize("name", [*OF_ENDED, "family"])
def test_a_process_that_ends_while_it_is_looked_at_is_no_error(name):
    """Some have ended before a file of them is opened, some after, and some before they are asked about."""
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        process = subprocess.Popen(["true"])
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        while reaper.is_alive():
            getattr(processes, name)(process.pid)
        reaper.join()


def test_other_processes_are_looked_at_in_one_place():
    """But for namespaces of a host, without which there is nothing to do."""
    other = re.compile(r"""/proc/(?:\{|["']\s*\+)|["']/proc["']|os\.kill\([^)]*, 0\)|import psutil""")
    folders = ("tests", "harness", "benchmarks", "scripts")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if other.search(path.read_text())]
    assert sorted(str(path.relative_to(ROOT)) for path in found) == [
        "harness/processes.py",
        "harness/scripts/forks.py",
        "tests/test_processes.py",
    ]
