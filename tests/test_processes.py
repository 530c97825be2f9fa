"""What tests and benchmarks ask of other processes, which may end at any moment."""

import re
import subprocess
import threading
import time
from pathlib import Path

import pytest

from harness import processes

ROOT = Path(__file__).resolve().parents[1]
ASKED = ("title", "environment", "is_running", "seconds_of", "seconds_waited", "parent", "ancestors", "children")
ASKED += ("thread_names", "open_files", "family")


@pytest.mark.parametrize("name", ASKED)
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
