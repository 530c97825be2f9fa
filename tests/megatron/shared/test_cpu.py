import pytest
import torch

from harness.local import launch
from recycle.megatron.flag.device.cpu_training import train_on_cpu
from recycle.megatron.gpt.model import ModelOptions, transformer_config
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.patching import replace
from recycle.runtime.errors import RunError
from recycle.runtime.step.checkpoint import write_shard


@pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is replaced where there is CUDA")
def test_what_is_done_for_the_cpu_is_said_and_done_once():
    seen = []

    def body(member):
        first = run_on_cpu()
        assert run_on_cpu() == first
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.zeros(2).type() == "torch.cuda.FloatTensor"
        assert torch.zeros(2).type(torch.float64).dtype == torch.float64
        state = torch.cuda.get_rng_state()
        value = torch.rand(1)
        torch.cuda.set_rng_state(state)
        assert torch.equal(torch.rand(1), value)
        member.report("\n".join(first).encode())

    launch(1, body, lambda rank, content: seen.append(content.decode()))
    assert "torch.cuda.current_device gives the CPU" in seen[0].splitlines()


def test_a_gpu_that_is_there_is_left_alone(tmp_path, monkeypatch):
    """With a GPU in sight, torch saves by its streams; without CUDA in torch, as here, that raises."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # Another test may have had this process run on the CPU already, and not under this GPU.
    run_on_cpu.cache_clear()

    def body(member):
        run_on_cpu()
        write_shard(tmp_path / "shard", {"weight": torch.ones(2)})

    launch(1, body, lambda rank, content: None)
    assert list((tmp_path / "shard").iterdir())


def test_a_name_that_is_gone_is_named():
    with pytest.raises(RunError, match=r"megatron-core [0-9.]+: torch has no zeroes, which is replaced here"):
        replace(torch, "zeroes", None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ModelOptions(layers=5), "layers is 5: 4 stages need a multiple of 4"),
        (ModelOptions(hidden=60, heads=7), r"heads is 7: it must divide hidden \(60\)"),
        (ModelOptions(heads=4, tensor_parallel=8), r"multiple of the tensor-parallel size \(8\)"),
        (ModelOptions(sequence_parallel=True), "sequence_parallel is on: it is for servers of several ranks"),
    ],
)
def test_a_model_that_cannot_be_cut_says_why(options, message):
    with pytest.raises(RunError, match=message):
        transformer_config(options, 4)


def test_a_class_is_replaced_by_a_class():
    """What is imported later may say ``Stream | None`` of it, as transformers does of torch's."""

    def body(_):
        with pytest.raises(AssertionError):
            replace(torch.cuda, "Stream", lambda: None)
        train_on_cpu()
        assert torch.cuda.Stream | None
        assert torch.cuda.Event | None

    launch(1, body)
