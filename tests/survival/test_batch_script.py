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

from harness.documents import block_with, changed
from harness.etcd import missing as etcd_missing
from harness.flag_runs import VARIABLES, make_dataset, needs_training, words_of
from harness.hosts import hosts, missing
from harness.paths import ROOT, python_path
from harness.started import TRAIN, wait_until

PAGE = ROOT / "docs" / "howto" / "slurm.md"
# Read when tests are collected, so that a page that loses one of them fails at once.
SCRIPT, COME_BACK = block_with(PAGE, "#!/bin/bash"), block_with(PAGE, "FIRST +")
MODEL = "layers = 1\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\n"
WHY_NOT = missing() or etcd_missing() or ("" if shutil.which("curl") else "the script takes curl")
JOB = "4711"
TOOLS = ("srun", "scontrol", "scancel", "curl")
MEGATRON = re.compile(r"python -m recycle\.megatron .*?\$MODEL_AND_DATA", re.DOTALL)


def test_the_script_is_one_of_bash():
    assert subprocess.run(["bash", "-n"], input=SCRIPT, text=True, check=False).returncode == 0
    assert SCRIPT.startswith("#!/bin/bash\n#SBATCH ")


class Cluster:
    """What a batch script sees of Slurm.

    Args:
        folder: for what the script needs.
        nodes: of the job.
        spare: a host that is none of them.
        tasks: on each node.
    """

    def __init__(self, folder, nodes, spare, tasks):
        self.nodes, self.spare, self.job = nodes, spare, folder / "job"
        self._folder, self._tools = folder, folder / "tools"
        self._tools.mkdir()
        for name in TOOLS:
            words = [sys.executable, "-m", "harness.scripts.slurm_stand_in", str(self._tools), name]
            (self._tools / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (self._tools / name).chmod(0o755)
        (self._tools / "hosts.json").write_text(json.dumps({each.name: each.first for each in (*nodes, spare)}))
        self._variables = {
            "PATH": f"{self._tools}:{os.environ['PATH']}",
            "PYTHONPATH": python_path(),
            "SLURM_JOB_ID": JOB,
            "SLURM_JOB_NODELIST": ",".join(node.name for node in nodes),
            "SLURM_JOB_NUM_NODES": str(len(nodes)),
            "SLURM_NTASKS_PER_NODE": str(tasks),
            **VARIABLES,
        }

    def begin(self, text, **variables):
        """Have a shell run a script of the page, with other folders than it names."""
        folders = {
            "/shared/llama70b": str(self.job),
            "/tmp/etcd-$SLURM_JOB_ID": f"{self._folder}/etcd-$SLURMD_NODENAME",
        }
        for old, new in folders.items():
            text = text.replace(old, new)
        return subprocess.Popen(["bash", "-c", text], env=os.environ | self._variables | variables)

    def said(self, rank):
        """What a rank of the training step has printed."""
        path = self.job / "logs" / f"{JOB}-{rank}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def batch(tmp_path):
    """The script on three nodes of one task each, begun by a shell as the job's; its process, and the cluster."""
    (tmp_path / "model.toml").write_text(MODEL)
    run = tmp_path / "job" / "run"
    size = f"--pipelines 3 --stages 1 --micro-batches 2 --iterations 20000 --model {tmp_path / 'model.toml'}"
    train = f"{' '.join(TRAIN)} train {size} -o {run} --resume-from {run}"
    with hosts(4) as (*nodes, spare):
        cluster = Cluster(tmp_path, nodes, spare, 1)
        process = cluster.begin(MEGATRON.sub(lambda _: train, SCRIPT))
        yield process, cluster
        process.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_the_job_that_is_told_to_end_makes_a_checkpoint_first(batch):
    process, cluster = batch
    wait_until(lambda: "iteration 5/" in cluster.said(0), 120)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 128 + signal.SIGTERM
    assert "with a checkpoint" in cluster.said(0)
    assert "the store is lost" not in cluster.said(0)
    assert list(cluster.job.glob("run/checkpoints/step-*"))


@needs_training
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_ranks_of_a_megatron_job_come_back_on_a_spare_node(tmp_path):
    """Three nodes of two ranks each, a pipeline a node; that of the second pipeline is lost with its member of etcd."""
    # Where it is there, those who are left wait between two iterations for those who are missing.
    slow = tmp_path / "slow"
    slow.touch()
    size = "--global-batch-size", 12
    path, *arguments = words_of(make_dataset(tmp_path / "text"), *size, iterations=30, script="paced_gpt.py")
    sizes = {"pretrain_gpt.py": path, "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 8": ""}
    given = {"MODEL_AND_DATA": shlex.join(arguments), "PACE": str(slow)}
    with hosts(4) as (*nodes, spare):
        cluster = Cluster(tmp_path, nodes, spare, 2)
        own = changed(SCRIPT, sizes)
        command = " ".join(re.search(r"python -m (recycle\.megatron .*?\$MODEL_AND_DATA)", own, re.DOTALL)[1].split())
        processes = [cluster.begin(own, **given)]
        try:
            wait_until(lambda: " iteration        3/" in cluster.said(5), 300)
            nodes[1].crash()
            wait_until(lambda: "training goes on with 4 servers" in cluster.said(0), 60)
            names = [each.name for each in nodes]
            back = {"MASTER_ADDR=N0": f"MASTER_ADDR={names[0]}", "N0,N1,N2": ",".join(names), "FIRST=72": "FIRST=2"}
            back |= {"JOBID": JOB, "SPARE": spare.name, "--ntasks=8": "--ntasks=2", "WORLD_SIZE=128": "WORLD_SIZE=6"}
            back["FIRST % 8"] = "FIRST % 2"
            back["recycle.megatron pretrain_gpt.py ... --pipeline-schedule recycle"] = command.replace("\\ ", "")
            processes.append(cluster.begin(changed(COME_BACK, back), RUN=str(cluster.job), **given))
            wait_until(lambda: "with 6 servers" in cluster.said(0), 300)
            for process in processes:
                process.wait(300)
            assert processes[1].returncode == 0
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert " iteration       30/" in "".join(map(cluster.said, range(6)))
