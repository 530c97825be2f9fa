"""The batch script of docs/howto/slurm.md runs as it stands, on hosts of namespaces and with a stand-in for Slurm."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from harness.etcd import missing as etcd_missing
from harness.hosts import hosts, missing
from harness.paths import ROOT, python_path
from harness.started import TRAIN, wait_until

PAGE = ROOT / "docs" / "howto" / "slurm.md"
MODEL = "layers = 1\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\n"
WHY_NOT = missing() or etcd_missing() or ("" if shutil.which("curl") else "the script takes curl")
TOOLS = ("srun", "scontrol", "scancel", "curl")
MEGATRON = re.compile(r"python -m recycle\.megatron .*?\$MODEL_AND_DATA", re.DOTALL)


def script():
    """The first block of the page."""
    return re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[0]


def changed(text, changes):
    """A text with what is other here; each change must be one."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def test_the_script_is_one_of_bash():
    assert subprocess.run(["bash", "-n"], input=script(), text=True, check=False).returncode == 0
    assert script().startswith("#!/bin/bash\n#SBATCH ")


@pytest.fixture
def batch(tmp_path):
    """The script on three nodes of one task each, begun by a shell as the job's; its process, and the folder."""
    tools, job = tmp_path / "tools", tmp_path / "job"
    tools.mkdir()
    (tmp_path / "model.toml").write_text(MODEL)
    for name in TOOLS:
        words = [sys.executable, "-m", "harness.scripts.slurm_stand_in", str(tools), name]
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (tools / name).chmod(0o755)
    run = job / "run"
    size = f"--pipelines 3 --stages 1 --micro-batches 2 --iterations 60 --model {tmp_path / 'model.toml'}"
    train = f"{' '.join(TRAIN)} train {size} -o {run} --resume-from {run}"
    text = changed(
        MEGATRON.sub(lambda _: train, script()),
        {"/shared/llama70b": str(job), "/tmp/etcd-$SLURM_JOB_ID": f"{tmp_path}/etcd-$SLURMD_NODENAME"},
    )
    with hosts(3) as nodes:
        (tools / "hosts.json").write_text(json.dumps({node.name: node.first for node in nodes}))
        variables = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": python_path(),
            "OMP_NUM_THREADS": "1",
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NODELIST": ",".join(node.name for node in nodes),
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_NTASKS_PER_NODE": "1",
        }
        process = subprocess.Popen(["bash", "-c", text], env=os.environ | variables)
        yield process, nodes, job
        process.kill()
        process.wait()


def said(job, rank):
    path = job / "logs" / f"4711-{rank}.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_the_job_outlives_the_first_node_with_a_member_of_etcd_and_the_first_rank(batch):
    process, nodes, job = batch
    wait_until(lambda: "iteration 5/" in said(job, 0), 120)
    nodes[0].crash()
    process.wait(120)
    assert "iteration 60/60" in said(job, 1) + said(job, 2), said(job, 1)
    assert "the first process is gone; the run goes on" in said(job, 1) + said(job, 2)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_the_job_that_is_told_to_end_makes_a_checkpoint_first(batch):
    process, _, job = batch
    wait_until(lambda: "iteration 5/" in said(job, 0), 120)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 128 + signal.SIGTERM
    assert "with a checkpoint" in said(job, 0)
    assert "the store is lost" not in said(job, 0)
    assert list(job.glob("run/checkpoints/step-*"))
