"""Who shows a run whose first process is gone: nothing before it is told to, and then the rest and the summary."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.examples import QUICK, paper_job
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run import Run
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.recorder import UNIT
from recycle.record.recording import FORMAT, VERSION, IterationLine, RunLine, ViewLine

JOB = paper_job(pipelines=1, stages=1, micro_batches=2)
HEAD = RunLine(FORMAT, VERSION, "a run", UNIT, "measured")
BEGUN = ViewLine(0, 0.0, ["W0_0"], [], 0, "the run begins", "memory", 10, 1.0, "the first plan")

# The first word is the folder, and the others are lines that are written after another.
CODE = """
import os, sys
from pathlib import Path
from recycle.cli.run.stand_in import StandIn

folder, first, second, wakes = Path(sys.argv[1]), *map(str.encode, sys.argv[2:4]), sys.argv[4] == "wakes"
recording = folder / "events" / "W0_0.jsonl"
stand_in = StandIn(folder)
recording.write_bytes(first)
if wakes:
    # A server's process does it, and so ends later than others.
    if os.fork() == 0:
        stand_in.wake()
        with recording.open("ab") as file:
            file.write(second)
        os._exit(0)
    os.wait()
stand_in.end()
"""


def iteration(step: int) -> IterationLine:
    return IterationLine("W0_0", step, 0.5, [2.0, 4.0], 1)


def encoded(*lines: msgspec.Struct) -> str:
    return "".join(f"{msgspec.json.encode(line).decode()}\n" for line in lines)


@pytest.mark.parametrize("wakes", ["wakes", "sleeps"])
def test_the_rest_of_a_run_is_shown_by_who_is_woken(tmp_path: Path, wakes: str) -> None:
    Run(make_plan(JOB, (), Mode(), QUICK), ModelOptions(1, 32, 2, 16), 3, tmp_path).save()
    (tmp_path / "events").mkdir()
    words = [encoded(HEAD, BEGUN, iteration(0)), encoded(iteration(1), iteration(2)), wakes]
    shown = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), *words], check=True, capture_output=True, text=True
    ).stderr
    if wakes == "sleeps":
        assert shown == ""
        return
    assert "3 iterations in" in shown
    assert f"written to {tmp_path}" in shown
    assert (tmp_path / "loss.svg").exists()
