"""What of NCCL is accepted, and what of torch's is not begun: as far as a machine without a GPU can tell."""

import os
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from harness.local import launch
from recycle.megatron.flag.command.refusals import refusals
from recycle.megatron.flag.device import accelerator
from recycle.megatron.flag.device.accelerator import keep_groups_on_host, lacks_nccl, tell_which_gpu, transport_of
from recycle.runtime.errors import RunError
from recycle.runtime.net.process_groups import make_replaceable_groups

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def said(lacks="", **settings):
    return [str(each) for each in refusals(lambda name: settings.get(name), lacks)]


def test_nccl_is_refused_with_the_reason_where_it_cannot_be_had():
    (line,) = said("this machine has no CUDA", distributed_backend="nccl")
    assert line == "distributed_backend is nccl: this machine has no CUDA; use --distributed-backend gloo"
    assert said("this machine has no CUDA", distributed_backend="gloo") == []
    assert said(distributed_backend="nccl", timing_log_level=1, high_priority_stream_groups=[], use_sharp=False) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("timing_log_level", 2), ("high_priority_stream_groups", ["dp_cp"]), ("use_sharp", True), ("nccl_ub", True)],
)
def test_over_nccl_what_needs_torchs_communicators_or_waits_for_the_whole_gpu_is_refused(name, value):
    (line,) = said(distributed_backend="nccl", **{name: value})
    assert line.startswith(f"{name} is ")
    assert said(distributed_backend="gloo", **{name: value}) == []


def test_communicators_of_groups_inside_a_server_are_torchs_and_have_the_settings_of_the_job(tmp_path):
    file = tmp_path / "communicators.yaml"
    file.write_text("# what is set\ntp:\n  max_ctas: 8\n'ep':\n  cga_cluster_size: 2\n")
    inside = {"nccl_communicator_config_path": str(file), "high_priority_stream_groups": ["tp", "ep", "cp"]}
    assert said(distributed_backend="nccl", **inside) == []
    file.write_text(file.read_text() + "dp_cp: {min_ctas: 1}\n")
    (line,) = said(distributed_backend="nccl", **inside)
    assert line.startswith(f"nccl_communicator_config_path is {file}: each view makes its own communicators")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize(
    ("name", "value"), [("pipeline_model_parallel_comm_backend", "nccl"), ("te_rng_tracker", True)]
)
def test_what_no_view_gives_up_and_nobody_can_hand_over_is_refused_over_both(name, value, backend):
    (line,) = said(distributed_backend=backend, **{name: value})
    assert line.startswith(f"{name} is ")


@NO_GPU
def test_without_a_gpu_there_is_no_nccl_and_gloo_carries_host_memory():
    assert lacks_nccl() == "this machine has no CUDA"
    assert transport_of("gloo") == "gloo"
    assert transport_of("nccl") == "nccl"


def test_with_a_gpu_the_library_decides_and_gloo_is_staged(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def missing():
        raise RunError("transport is nccl: there is no library")

    assert transport_of("gloo") == "staged"
    monkeypatch.setattr(accelerator, "Nccl", missing)
    assert lacks_nccl() == "transport is nccl: there is no library"
    monkeypatch.setattr(accelerator, "Nccl", lambda: SimpleNamespace(release=22703))
    assert lacks_nccl() == ""


@pytest.mark.parametrize(
    ("variable", "said", "seen", "told"),
    [("SLURM_LOCALID", "3", 1, "0"), ("LOCAL_RANK", "3", 8, "3"), (None, "", 8, "0")],
)
def test_megatron_is_told_of_a_gpu_that_the_process_sees(monkeypatch, variable, said, seen, told):
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if variable is not None:
        monkeypatch.setenv(variable, said)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    tell_which_gpu()
    assert os.environ["LOCAL_RANK"] == told


def test_groups_that_are_asked_of_nccl_are_gloos():
    def body(member):
        keep_groups_on_host()
        store = dist.PrefixStore("world", member.store())
        torch.distributed.init_process_group(backend="nccl", store=store, rank=member.rank, world_size=member.count)
        made = make_replaceable_groups()
        assert dist.get_backend() == dist.get_backend(dist.new_group([0, 1], pg_options="few blocks")) == "gloo"
        assert [each.settings for each in made] == ["few blocks"]
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2

    launch(2, body)
