"""Training by a plan against the same training without a pipeline: losses, parameters, memory."""

import gc
import math
import time

import msgspec
import pytest
import torch

from harness.examples import paper_job, placed_job, plan_around
from harness.ranks import results_of
from recycle.control.membership.view import View
from recycle.plan.memory import peak_memory
from recycle.plan.mode import Mode
from recycle.record.recorder import Recorder
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.connect import connect
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.update import TorchUpdate
from scripts.plain_torch import TorchStage, cut
from tests.runtime.models import inputs, layers, optimizer, stage_boundaries, targets, train_whole

STEPS = 3


class Result(msgspec.Struct):
    losses: list[tuple[int, int, int, float]]
    parameters: list[float]
    peaks: list[int]
    tensors: list[int]


def tensors():
    """Live tensors."""
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def tensors_left(allowed):
    """Live tensors, once no more than so many live: gloo's own threads hold what was summed for a moment longer."""
    deadline = time.monotonic() + 120
    while (left := tensors()) > allowed and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def train(plan, dropout=0.0, clip=None):
    """Every server's result."""
    view = View.of(plan)
    job = plan.job

    def body(member):
        gc.freeze()  # what was there before the fork is neither walked nor counted
        server = view.servers[member.rank]
        count, chunks = len(job.stages), job.chunks[server.stage]
        model = layers(count, dropout)
        modules, boundaries = cut(model, count), stage_boundaries(model, count)
        loss, scale = torch.nn.functional.mse_loss, 1 / job.micro_batches
        stages = [TorchStage(modules[each], each, boundaries[each], inputs, targets, loss, scale) for each in chunks]
        network = connect(member.store(), view, server)
        staggered = plan.mode.optimizer == "staggered"
        update = TorchUpdate(
            MainParameters(*(stage.parameters() for stage in stages)),
            optimizer,
            job.pipelines,
            chunks,
            count,
            Method(clip, staggered),
        )
        update.enter(network, 0)
        update.connect(network)
        worker = Worker(plan, stages, update, network, Recorder(server))
        result = Result([], [], [], [])
        for step in range(STEPS):
            report = worker.run(step)
            places = [(step, home, number) for home in range(job.pipelines) for number in range(job.micro_batches)]
            result.losses += [(*place, loss) for place, loss in zip(places, report.losses, strict=False)]
            result.peaks.append(report.peak_memory)
            result.tensors.append(tensors_left(min(result.tensors[1:], default=math.inf)))
        result.parameters = torch.cat([each.detach().flatten() for each in update.main]).tolist()
        network.barrier()
        return result

    results = results_of(len(view.servers), body, Result)
    return {view.servers[rank]: result for rank, result in results.items()}


def require_same(plan, dropout=0.0, clip=None):
    job = plan.job
    results = train(plan, dropout, clip)
    losses, parameters = train_whole(job, STEPS, dropout, clip)
    trained = {MicroBatch(*each[:3]): each[3] for result in results.values() for each in result.losses}
    assert trained.keys() == losses.keys()
    for micro_batch, loss in losses.items():
        assert trained[micro_batch] == pytest.approx(loss, rel=1e-5)
    for server, result in results.items():
        peers = [other.parameters for each, other in results.items() if each.stage == server.stage]
        assert all(other == result.parameters for other in peers), f"peers of stage {server.stage} differ"
        whole = torch.cat([parameters[chunk] for chunk in job.chunks[server.stage]])
        torch.testing.assert_close(torch.tensor(result.parameters), whole, rtol=1e-4, atol=1e-5)
        assert max(result.peaks) == peak_memory(job, server, plan.programs[server])
        assert result.tensors[2] <= result.tensors[1], "tensors are left after an iteration"


@pytest.mark.parametrize(
    "failed",
    [
        [],
        ["W1_2"],
        ["W0_0", "W2_3"],
        *(pytest.param(each, marks=pytest.mark.long) for each in (["W1_0"], ["W0_3"], ["W0_2", "W1_2"])),
    ],
    ids=lambda each: "+".join(each),
)
def test_training_goes_on_as_if_nobody_had_died(failed):
    require_same(plan_around(paper_job(micro_batches=4, released=0, limit=7, taken=1), *failed))


def test_with_dropout_a_fused_backward_and_clipping():
    job = paper_job(micro_batches=4, limit=6, taken=2)
    require_same(plan_around(job, "W1_2", mode=Mode("fused", "global")), dropout=0.2, clip=0.05)


def test_with_free_routing_and_two_stages():
    require_same(plan_around(paper_job(stages=2, micro_batches=4), "W1_1", mode=Mode(routing="free")))


@pytest.mark.parametrize(
    ("job", "dead", "clip"),
    [
        (placed_job("v-shaped"), [], None),
        (placed_job("v-shaped"), ["W0_1"], 0.05),
        (placed_job("interleaved:2"), ["W1_0"], 0.05),
    ],
    ids=["each on its own", "together", "interleaved"],
)
def test_with_several_stages_per_server(job, dead, clip):
    require_same(plan_around(job, *dead), dropout=0.2, clip=clip)


def test_with_neighbouring_stages_on_one_server_and_others_apart():
    job = placed_job("v-shaped")
    job = msgspec.structs.replace(job, placement=((0, 2), (1, 3)))
    require_same(plan_around(job, "W0_0", mode=Mode("fused", "global")))
