"""What a test forks its programs from ends with the test's process, and leaves nothing behind."""

import subprocess
import sys

PROGRAM = """
from pathlib import Path
from harness.forked import Forked
with Forked(["-m", "this"], {}, Path(), "json") as forked:
    assert "Beautiful" in forked.stdout.read()
"""


def test_no_socket_is_left_open():
    ended = subprocess.run([sys.executable, "-W", "default", "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
