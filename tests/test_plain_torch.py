"""The example for people without Megatron: short, and its loss does not depend on who is dead."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "plain_torch.py"


def losses(*arguments):
    command = [sys.executable, str(SCRIPT), "--steps", "5", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]


def test_it_is_short():
    assert len(SCRIPT.read_text().splitlines()) < 80


def test_it_trains_and_goes_on_without_a_server():
    whole = losses()
    assert len(whole) == 5
    assert whole[-1] < whole[0]
    assert losses("--dead", "W1_2") == pytest.approx(whole, abs=2e-5)
