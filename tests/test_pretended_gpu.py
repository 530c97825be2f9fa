"""What runs on GPUs, on pretended ones: where somebody has installed torch's build for CUDA for them."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.flag_runs import needs_training
from harness.paths import python_path

ROOT = Path(__file__).parents[1]
MADE = ROOT / ".pretended-gpu" / "built"

TINY = "layers = 2\nhidden = 16\nheads = 2\nsequence = 8\n"

pytestmark = [
    pytest.mark.skipif(not MADE.exists(), reason="scripts/pretend-gpu was never run here: it installs some 6 GB"),
    pytest.mark.timeout(600),
]


def pretend(*words, **variables):
    """What a command prints, and says beside it, that is run as if there were GPUs."""
    own = {"PATH": os.defpath, "HOME": os.environ["HOME"], "STAND_IN_NCCL_VERSION": "23007"}
    command = [ROOT / "scripts" / "pretend-gpu", *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=own | variables, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "that nothing computes" not in ended.stderr
    return ended.stdout, ended.stderr


def test_the_check_of_gpus_finds_nothing_wrong():
    said, _ = pretend(
        "scripts/gpu-check", "find", "stages", "profile", "staged", "kills", "nccl", "--kills", "4", "--small"
    )
    rows = [line.split(" | ") for line in said.splitlines()[2:]]
    assert [row[1] for row in rows] == ["passed"] * 6, said
    assert "1 x pretended GPU" in rows[0][2]


def test_what_is_read_before_it_was_copied_is_something_else():
    """So that a wait that is missing shows."""
    script = """
import torch
device = torch.arange(4.0).cuda()
host = torch.zeros(4, pin_memory=True)
host.copy_(device, non_blocking=True)
assert host.tolist() != device.tolist()
torch.cuda.current_stream().synchronize()
assert host.tolist() == [0.0, 1.0, 2.0, 3.0]
"""
    pretend("python", "-c", script)


def test_tensors_of_several_devices_are_refused():
    script = """
import torch
for other in ("cpu", "cuda:1"):
    one, two = torch.ones(2, device="cuda:0"), torch.ones(2, device=other)
    for add in (torch.add, lambda *pair: torch._foreach_add(*([each] for each in pair))):
        try:
            add(one, two)
        except RuntimeError as error:
            print(error)
"""
    said, _ = pretend("python", "-c", script, PRETENDED_GPUS="2")
    assert said.count("Expected all tensors to be on the same device") == 4


@pytest.mark.parametrize("eager", [(), ("eager",)])
def test_torchs_own_groups_of_nccl_do_what_they_should(tmp_path, eager):
    """Eager ones are split, others made one by one."""
    program = ("python", "-m", "harness.scripts.torch_groups")
    with ThreadPoolExecutor(3) as ranks:
        started = [
            ranks.submit(pretend, *program, str(rank), f"file://{tmp_path}/store", *eager, PRETENDED_GPUS="3")
            for rank in range(3)
        ]
        for each in started:
            each.result()


def test_no_instruction_has_the_host_wait_for_the_device():
    """Its waits would hold up what comes next, and end by no time-out where the device waits for another server."""
    said, _ = pretend("python", "-m", "harness.scripts.stage_on_gpu")
    assert said == "losses of 2 micro-batches\n"


@needs_training
def test_a_plan_has_the_losses_of_stock_megatron_over_nccl():
    said, _ = pretend("scripts/gpu-check", "stock", "--small", PYTHONPATH=python_path())
    assert "| passed | 2 stages of a small model on cuda: stock 1F1B" in said


def require_the_losses_of_a_cpu(folder, model, transport, pipelines=2, ranks=1):
    """A run with a kill on pretended GPUs has them."""
    (folder / "model.toml").write_text(f"{TINY}exact = true\n{model}\n")
    (folder / "faults.toml").write_text('[[fault]]\nkind = "kill"\nserver = "W1_1"\niteration = 4\n')
    shape = ["-D", str(pipelines), "-P", "2", "-M", "4", "--model", f"{folder}/model.toml", "--iterations", "6"]
    faults = ["--faults", f"{folder}/faults.toml", "--device", transport]
    losses, count = [], str(2 * pipelines * ranks)
    for name, more in (("cpu", []), ("cuda", faults)):
        _, said = pretend("recycle", "train", *shape, *more, "-o", f"{folder}/{name}", PRETENDED_GPUS=count)
        losses.append(sorted(set(re.findall(r"iteration (\d+)/6: loss (\S+),", said))))
    assert len(losses[0]) == 6
    assert losses[0] == losses[1]


@pytest.mark.parametrize("transport", ["cuda", "cuda+nccl"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_with_a_kill_has_the_losses_of_one_on_a_cpu(tmp_path, ranks, transport):
    """Also where servers have several ranks, which call each other in torch's own groups."""
    require_the_losses_of_a_cpu(tmp_path, f"tensor_parallel = {ranks}", transport, ranks=ranks)


@pytest.mark.parametrize("transport", ["cuda", "cuda+nccl"])
def test_shards_of_the_optimizer_that_come_from_a_peer_lie_on_the_gpu(tmp_path, transport):
    """Of three peers, two have each; after a death, the two that are left get what they lack of each other."""
    require_the_losses_of_a_cpu(tmp_path, "distributed_optimizer = true", transport, pipelines=3)
