"""The tutorial on a Megatron script runs as it stands, but for the script itself, which is the tests' own."""

import shutil
import sys
from functools import partial

import pytest

from harness.documents import block_with
from harness.flag_runs import SCRIPT, needs_training, printed, variables
from harness.paths import ROOT
from harness.ports import free_port
from harness.started import Started

PAGE = ROOT / "docs" / "tutorials" / "megatron.md"
block = partial(block_with, PAGE)
KILLED, ADMITTED = (block(text).strip() for text in ("W1_1 was killed", "new servers are admitted"))


@pytest.fixture
def shell(tmp_path):
    """Begins what the page has typed, in a folder with the script."""
    shutil.copy(SCRIPT, tmp_path / "pretrain_gpt.py")
    environment = variables()
    environment["PATH"] = f"{sys.prefix}/bin:{environment['PATH']}"

    def begin(text):
        # Two jobs of one machine need ports of their own, as the page on torchrun says.
        command = text.replace("torchrun ", f"torchrun --master-port {free_port()} ")
        words = ["bash", "-ec", f"cd {tmp_path}\n{block('ARGS=')}\n{command}"]
        return Started(words, variables=environment)

    return begin


@needs_training
@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_command_does_what_the_page_says(shell):
    doctor = shell(block("recycle doctor"))
    assert doctor.ended() == 0
    for line in block("pipelines x 2 stages").splitlines():
        assert line in doctor.output
    run = shell(block("--recycle-record run"))
    run.wait_for(" iteration        5/     600", 300)
    assert shell(block("recycle kill")).ended() == 0
    run.wait_for(KILLED, 240)
    run.wait_for(ADMITTED, 240)
    assert run.ended(600) == 0, run.output[-3000:]
    again = shell(block("--load ckpt"))
    assert again.ended(300) == 0, again.output[-3000:]
    assert list(printed(again.output).trained) == list(range(601, 611))
