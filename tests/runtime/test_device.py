"""What the runtime does with a device, on a machine that may have none."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.megatron.gpt.checkpointing import Checkpointing
from recycle.runtime.device import count_gpus, host_copy, require_device, seed_generators, settle, take_device
from recycle.runtime.errors import RunError
from recycle.runtime.join.following import Follower
from recycle.runtime.keep.keeper_copies import Snapshot
from recycle.state.redundancy import Redundancy

NONE = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@NONE
def test_a_gpu_that_is_not_there_is_refused_in_a_line():
    assert count_gpus() == 0
    with pytest.raises(RunError, match=r"^device is cuda: torch .* finds no GPU here.* --device cpu"):
        require_device("cuda")
    require_device("cpu")


def test_a_gpu_that_forked_processes_could_not_use_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    require_device("cuda")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(RunError, match=r"^device is cuda: .*libnvidia-ml.so.1 did not answer.* --device cpu"):
        require_device("cuda")
    require_device("cpu")


def test_what_is_imported_asks_for_gpus_without_cuda():
    """Torch forks processes that cannot use a GPU once it has asked CUDA for one."""
    script = """
import os
import torch
own, asked = torch.cuda.is_available, []
def is_available():
    asked.append(os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
    return own()
torch.cuda.is_available = is_available
import recycle.megatron.gpt.training
torch.cuda.is_available()
assert set(asked) == {"1"}, asked
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTORCH_NVML_BASED_CUDA_CHECK"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, env=environment)


def test_who_asks_for_gpus_does_not_touch_cuda_itself():
    script = """
import torch
from unittest import mock
from recycle.runtime.device import count_gpus
with mock.patch.object(torch.cuda, "is_available", lambda: True), mock.patch.object(torch.cuda, "device_count", ask):
    assert count_gpus() == 3
assert not asked
"""
    head = "asked = []\ndef ask():\n    asked.append(1)\n    return 3\n"
    subprocess.run([sys.executable, "-c", head + script], check=True, env=os.environ)


def test_processes_share_gpus_in_turns_unless_their_launcher_says_otherwise(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    assert [take_device("cuda", number).index for number in range(4)] == [0, 1, 0, 1]
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert take_device("cuda", 0).index == 1
    assert len(taken) == 5
    monkeypatch.setenv("LOCAL_RANK", "-1")
    with pytest.raises(RunError, match="LOCAL_RANK is '-1', and must be a number: set it as torchrun or srun does"):
        take_device("cuda", 0)
    assert take_device("cpu", 5) == torch.device("cpu")


def write_checkpoint(look):
    run = SimpleNamespace(durations=SimpleNamespace(transfer=60.0))
    saving = SimpleNamespace(_run=run, _sum=lambda _, tensor: tensor, _has_failed=lambda *_: False)
    Checkpointing._do_together(saving, None, 8, look)


def copy_to_keepers(look):
    version = SimpleNamespace(range_of=lambda _: look() or range(0), describe=lambda _: b"", state={})
    Snapshot([], Redundancy(1, 2), SimpleNamespace(version=8), version).finish()


def follow_a_peer(look):
    class Endpoint:
        def connect(self, _):
            look()
            raise StoreLost("there is none")

    meeting = SimpleNamespace(endpoint=Endpoint(), durations=Durations(), joiner="W0_0")
    Follower(meeting, None, None).wait(60)


@pytest.mark.parametrize("work", [write_checkpoint, copy_to_keepers, follow_a_peer])
def test_a_thread_works_on_the_device_of_its_server(monkeypatch, work):
    thread, seen = threading.local(), []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(thread, "device", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(thread, "device", device.index))
    torch.cuda.set_device(torch.device("cuda", 1))
    work(lambda: seen.append((threading.current_thread(), torch.cuda.current_device())))
    ((worker, device),) = set(seen)
    assert worker != threading.current_thread()
    assert device == 1


def test_what_is_drawn_from_a_seed_is_what_torch_draws_from_it():
    drawn = []
    for seed in (torch.manual_seed, seed_generators):
        seed((1 << 63) - 1)
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1]


def test_a_copy_in_host_memory_is_one():
    tensor = torch.arange(6.0).view(2, 3).t().requires_grad_()
    copy = host_copy(tensor)
    settle()
    with torch.no_grad():
        tensor.zero_()
    assert copy.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert not copy.requires_grad
