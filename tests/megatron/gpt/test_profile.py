import msgspec
import pytest
import torch

from harness.examples import QUICK, paper_job
from recycle.job import Server
from recycle.jobfile import encode_job, load_job
from recycle.megatron.gpt.forward import load_text
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.profile import SavedBytes, profile
from recycle.plan.checker import check_plan
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan

MODEL = ModelOptions(layers=2, hidden=32, heads=2, sequence=16, micro_batch_size=2)


def test_saved_bytes_count_each_storage_once_and_no_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Sigmoid(), torch.nn.Linear(16, 4))
    source = torch.randn(10, 8, requires_grad=True)
    with SavedBytes(model) as counter:
        model(source)
    # The input of the first linear; the sigmoid's output, which is also the input of the second.
    assert counter.total == 10 * 8 * 4 + 10 * 16 * 4


def test_a_measured_job_can_be_planned_and_written(tmp_path):
    job = profile(paper_job(pipelines=2, stages=2, micro_batches=3), MODEL, load_text(None, MODEL), repeats=3)
    assert (job.pipelines, job.depth, job.micro_batches) == (2, 2, 3)
    assert (job.time_unit, job.memory_unit) == ("microsecond", "byte")
    for stage in job.stages:
        assert min(stage.forward, stage.input_gradient, stage.weight_gradient, stage.optimizer, stage.reduction) > 0
        assert 0 < stage.released_at_input_gradient < stage.held
        # At least the layer's input, and no more than a hundred tensors of its size.
        boundary = MODEL.sequence * MODEL.micro_batch_size * MODEL.hidden * 4
        assert boundary < stage.held < 100 * boundary
        assert stage.limit == 2 * stage.held
    assert job.latency[0] > 0
    path = tmp_path / "job.toml"
    path.write_bytes(encode_job(job))
    assert load_job(path, {}) == job
    assert check_plan(make_plan(job, [Server(1, 1)], Mode(), QUICK)) == ()


@pytest.mark.parametrize(
    ("changes", "bytes_per_parameter"),
    [
        ({}, 12 + 12 + 4),
        ({"clip": 1.0}, 12 + 12 + 4 + 4),
        ({"exact": True}, 12 + 12 + 4 + 4 + 8),
        ({"fp16": True}, 2 + 12 + 12 + 4 + 4),
        ({"optimizer": "sgd"}, 8 + 8 + 4),
    ],
    ids=["plain", "clip", "exact", "fp16", "sgd"],
)
def test_the_state_is_measured_as_the_table_says(changes, bytes_per_parameter):
    model = msgspec.structs.replace(MODEL, **changes)
    (stage,) = profile(paper_job(pipelines=1, stages=1, micro_batches=3), model, load_text(None, model), 1).stages
    layer = 12 * 32 * 32 + 13 * 32
    parameters = 2 * layer + (2 * 256 + 16) * 32 + 2 * 32  # embeddings, head and the last norm
    # Beside them there are a count of steps per tensor, and the scale.
    assert stage.state == pytest.approx(parameters * bytes_per_parameter, rel=0.005)
