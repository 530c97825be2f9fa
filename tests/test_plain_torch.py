"""The example for people without Megatron: its loss does not depend on who is dead."""

import os

import pytest

from harness.forked import Forked
from harness.paths import ROOT

SCRIPT = ROOT / "scripts" / "plain_torch.py"


def losses(folder, *arguments):
    with Forked([str(SCRIPT), "--steps", "5", *arguments], os.environ, folder) as example:
        said = example.stdout.read()
    assert example.returncode == 0, said
    return [float(line.rpartition(" ")[2]) for line in said.splitlines()]


def test_it_trains_and_goes_on_without_a_server(tmp_path):
    whole = losses(tmp_path)
    assert len(whole) == 5
    assert whole[-1] < whole[0]
    assert losses(tmp_path, "--dead", "W1_2") == pytest.approx(whole, abs=2e-5)
