"""``recycle train`` through torchrun."""

import os
import subprocess
import sys

import pytest

ARGUMENTS = ["train", "--stages", "2", "--pipelines", "2", "--micro-batches", "2", "--dead", "W1_0"]


def torchrun(folder, processes):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    program = folder / "main.py"
    program.write_text("from recycle.cli import main\nmain()\n")
    run = [str(program), *ARGUMENTS, "--iterations", "2", "--evaluate-every", "2", "-o", str(folder / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *run], capture_output=True, text=True, timeout=200, env=environment, check=False)


@pytest.mark.timeout(250)
def test_the_processes_that_it_starts_are_the_servers(tmp_path):
    result = torchrun(tmp_path, 3)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("iteration 2/2: loss ")]
    assert len(lines) == 1
    assert "3/4 servers" in lines[0]
    events = {path.name for path in (tmp_path / "run" / "events").iterdir()}
    assert events == {"W0_0.jsonl", "W0_1.jsonl", "W1_1.jsonl"}
    assert (tmp_path / "run" / "checkpoints" / "step-00000002" / "checkpoint.json").exists()


@pytest.mark.timeout(250)
def test_another_number_of_processes_is_refused(tmp_path):
    result = torchrun(tmp_path, 2)
    assert result.returncode != 0
    expected = "recycle: WORLD_SIZE is 2, and the plan has 3 live servers, a process each: start torchrun with 3"
    assert expected in result.stderr
