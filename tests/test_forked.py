"""What is forked for a test ends with it, in whatever way that ends."""

import os
import signal
import subprocess
import sys

import pytest

from harness.paths import python_path
from harness.processes import is_running, processes, title
from harness.started import wait_until

NAMED = """
from setproctitle import setproctitle
import time
setproctitle("forked below {}")
time.sleep(300)
"""
STARTER = """
import os, sys, time
from pathlib import Path
from harness.forked import Forked
Forked(sys.argv[1:], os.environ, Path.cwd(), imported="json")
print("has forked", flush=True)
time.sleep(300)
"""
RANKS = ("-m", "harness.scripts.forked_ranks", "2")


def named(name: str) -> list[int]:
    return [each for each in processes() if title(each) == f"forked below {name}"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("before", [(), RANKS], ids=["program", "ranks"])
def test_what_was_forked_ends_with_who_asked_for_it(tmp_path, number, before):
    program = tmp_path / "program.py"
    program.write_text(NAMED.format(tmp_path.name))
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, *before, str(program)],
        env=os.environ | {"PYTHONPATH": python_path()},
        cwd=tmp_path,
    ) as starter:
        wait_until(lambda: len(named(tmp_path.name)) == (2 if before else 1))
        started = named(tmp_path.name)
        starter.send_signal(number)
    wait_until(lambda: not any(map(is_running, started)))
