"""What tests and benchmarks ask of other processes, which may end at any moment."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness import processes
from harness.processes import UNSEEN
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


def test_of_a_process_that_lives_all_is_known():
    words = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])", "one  word"]
    with subprocess.Popen(words, env=os.environ | {"MARK": "a=b"}) as process:
        try:
            wait_until(lambda: any(processes.title(each) == "sleep 600" for each in processes.children(process.pid)))
            (below,) = processes.children(process.pid)
            assert processes.title(process.pid) == " ".join(words)
            assert processes.environment(process.pid)["MARK"] == "a=b"
            assert processes.is_running(process.pid)
            # A process that has just begun may have used less than the clock of the kernel shows.
            assert processes.seconds_of(process.pid) < processes.seconds_of(os.getpid())
            assert processes.seconds_waited(process.pid) >= 0
            assert processes.ancestors(below)[:2] == [process.pid, os.getpid()]
            assert processes.family(process.pid) == {process.pid, below}
            assert processes.family(process.pid) < set(processes.processes())
            assert processes.thread_names(below) == ["sleep"]
            assert processes.open_files(below)[0] == processes.open_files(os.getpid())[0]
        finally:
            for each in processes.family(process.pid):
                processes.send_signal(each, signal.SIGKILL)


def test_children_of_every_thread_are_found():
    started = []
    end = threading.Event()

    def start():
        started.append(subprocess.Popen(["sleep", "600"]))
        end.wait()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        wait_until(lambda: started)
        assert started[0].pid in processes.children(os.getpid())
    finally:
        end.set()
        thread.join()
        started[0].kill()
        started[0].wait()


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


@pytest.mark.parametrize("error", UNSEEN)
def test_whatever_the_kernel_says_of_it_is_no_error(monkeypatch, error):
    def fail(*_, **__):
        raise error

    for name in ("read_text", "iterdir", "readlink"):
        monkeypatch.setattr(Path, name, fail)
    assert {name: getattr(processes, name)(os.getpid()) for name in OF_ENDED} == OF_ENDED


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
