import subprocess
import sys

import pytest

from harness.flag_runs import TORCHRUN, losses, nearly, needs_training, norms, train
from recycle.errors import UserError
from recycle.megatron.flag.command.on_cpu import SWITCHES, VALUES, require_without_cuda, settings_for_cpu
from recycle.megatron.flag.device.cpu_training import COLLECTORS


def test_what_is_missing_is_set():
    added = settings_for_cpu(["--lr", "1", SWITCHES[0], "--transformer-impl", "local"])
    assert added == ["--distributed-backend", "gloo", *SWITCHES[1:]]
    assert settings_for_cpu([*added, "--transformer-impl=local", SWITCHES[0]]) == []


@pytest.mark.parametrize(("option", "value"), [("--distributed-backend", "nccl"), ("--transformer-impl", "inference")])
def test_what_needs_cuda_is_refused(option, value):
    assert option in VALUES
    with pytest.raises(UserError, match=f"{option} {value}: it needs CUDA, and --on-cpu is given"):
        settings_for_cpu([option, value])


@pytest.mark.parametrize("arguments", [[], ["--distributed-backend", "nccl"], ["--distributed-backend=nccl"]])
def test_nccl_without_cuda_is_refused_with_the_remedy(arguments):
    with pytest.raises(UserError, match=r"nccl.*has no CUDA; put --on-cpu before the script"):
        require_without_cuda(arguments)


@pytest.mark.parametrize("arguments", [["--distributed-backend", "gloo"], ["--yaml-cfg", "job.yaml"]])
def test_what_may_work_is_not_refused(arguments):
    require_without_cuda(arguments)


def test_a_script_is_given_what_is_missing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(*sys.argv[1:])")
    command = [sys.executable, "-m", "recycle.megatron", "--on-cpu", script, "--lr", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["--lr", "1", *settings_for_cpu([])]
    assert f"recycle: --on-cpu sets {' '.join(settings_for_cpu([]))}" in ended.stderr


def test_one_line_instead_of_a_traceback(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('it has begun')")
    job = ("--pipeline-schedule", "recycle", "--micro-batch-size", "1", "--global-batch-size", "2")
    command = [sys.executable, "-W", "ignore", *TORCHRUN, "2", "-m", "recycle.megatron", script, *job]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    (said,) = {line for line in ended.stderr.splitlines() if line.startswith("recycle: ")}
    assert said.startswith("recycle: --distributed-backend, Megatron's default is nccl")
    assert ended.stdout == ""


@pytest.mark.long
@needs_training
@pytest.mark.timeout(1200)
def test_with_virtual_stages_what_is_sent_arrives_as_it_was(dataset):
    """Where Megatron's schedule frees an output before it has arrived, every run prints other losses."""
    virtual = ("--num-layers", 4, "--num-layers-per-virtual-pipeline-stage", 1, "--use-distributed-optimizer")
    flagged = train(dataset, *virtual, "--pipeline-schedule", "recycle")
    stock = train(dataset, *virtual)
    assert len(stock.trained) == 8
    # The plan is the planner's, and how good it is depends on the machine's load.
    assert losses(flagged) == nearly(stock)
    assert norms(flagged) == pytest.approx(norms(stock), abs=0.002)


@needs_training
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("schedule", [pytest.param("stock", marks=pytest.mark.long), "recycle"])
def test_a_process_that_writes_checkpoints_while_training_goes_on_writes_them(dataset, tmp_path, schedule):
    settings = ("--pipeline-schedule", schedule, "--num-layers", 2, "--save", tmp_path, "--save-interval", 1)
    settings += ("--async-save", "--use-persistent-ckpt-worker", "--async-strategy", "mcore")
    run = train(dataset, *settings, ranks=2, iterations=3)
    assert "is left out" not in run.output
    # Megatron writes this file when all writers of a checkpoint are through.
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "3"
    resumed = train(dataset, "--num-layers", 2, "--load", tmp_path, "--ckpt-step", 2, ranks=2, iterations=3)
    assert resumed.trained == {3: run.trained[3]}


@needs_training
def test_what_collects_a_checkpoint_begins_without_the_script(tmp_path):
    """Which cannot be imported there by every release, since nothing stands in for CUDA in such a process."""
    script = tmp_path / "script.py"
    script.write_text(
        "from megatron.core.dist_checkpointing.strategies import filesystem_async\n"
        "assert __name__ == '__main__'\n"
        f"(make,) = [each for each in map(vars(filesystem_async).get, {COLLECTORS}) if each]\n"
        "written = make()\n"
        "written.put(__file__)\n"
        "print(written.get())\n"
    )
    command = [sys.executable, "-m", "recycle.megatron", script]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == str(script)
    assert "Traceback" not in ended.stderr


@pytest.mark.long
@needs_training
@pytest.mark.parametrize("optimizer", [(), ("--use-distributed-optimizer",)], ids=["whole", "in shards"])
@pytest.mark.parametrize("kept", ["torch", "torch_dist"])
def test_a_checkpoint_loads_in_the_other_order_of_ranks(dataset, tmp_path, kept, optimizer):
    """From stock to the flag, and back."""
    settings = ("--ckpt-format", kept, "--save-interval", 4, "--bf16", *optimizer)
    flag = ("--pipeline-schedule", "recycle", "--use-tp-pp-dp-mapping")

    def norms_of(*words):
        # The loss that Megatron prints in the second iteration after a load is the mean of two.
        return {step: norm for step, (_, norm) in train(dataset, *settings, *words, iterations=12).trained.items()}

    found = norms_of("--save", tmp_path / "stock", "--exit-interval", 4)
    found |= norms_of(*flag, "--load", tmp_path / "stock", "--save", tmp_path / "flag", "--exit-interval", 8)
    assert list(found) == [*range(1, 9)]
    found |= norms_of("--load", tmp_path / "flag")
    assert found == norms_of()
