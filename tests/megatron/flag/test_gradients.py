"""Gradients are weighted as Megatron weights them, whichever of its ways it is told to take."""

from types import SimpleNamespace

import pytest
import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

from harness.examples import paper_job, placed_job
from harness.gpt_runs import OPTIONS
from harness.local import launch
from recycle.holding import placed
from recycle.job import Server
from recycle.megatron.flag.steps.gradients import BucketGroup, LiveGradients, factor_of
from recycle.megatron.gpt.model import transformer_config
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.world import join_server
from recycle.runtime.errors import RunError
from recycle.runtime.net.network import Group


def test_where_megatron_would_make_the_mean_in_a_collective_the_sum_is_divided():
    def body(member):
        run_on_cpu()
        join_server(Server(0, 0), 1)
        parallel_state.get_data_parallel_group(with_context_parallel=True).counted = (0, 4)
        for average in (False, True):
            config = DistributedDataParallelConfig(average_in_collective=average)
            model = DistributedDataParallel(transformer_config(OPTIONS, 1), config, torch.nn.Linear(2, 2))
            (buffer,) = model.buffers
            assert buffer.gradient_scaling_factor == (1 if average else 0.25)
            assert factor_of(buffer) == 0.25

    launch(1, body)


class Peers(Group):
    """Says what is summed, and when that is waited for."""

    def __init__(self):
        self.said = []

    def start_sum(self, tensor):
        number = int(tensor[0])
        self.said.append(f"sum {number}")
        return SimpleNamespace(wait=lambda: self.said.append(f"wait {number}"))


class Buffer(SimpleNamespace):
    """As one of Megatron's, it is itself alone."""

    __hash__ = object.__hash__


def chunk_of(number):
    """A chunk in DDP, whose gradients are a number."""
    ddp = SimpleNamespace(average_in_collective=False, check_for_nan_in_grad=False, check_for_large_grads=False)
    layers, experts = (
        [
            Buffer(
                grad_data=torch.tensor([value]),
                ddp_config=ddp,
                gradient_scaling_factor=1.0,
                buckets=[SimpleNamespace(offset=0, grad_data=torch.tensor([value]), params=())],
            )
        ]
        for value in (number, number + 10.0)
    )
    model = SimpleNamespace(buffers=layers, expert_parallel_buffers=experts, share_embeddings_and_output_weights=False)
    settings = SimpleNamespace(tensor_model_parallel_size=1, calculate_per_token_loss=False)
    return SimpleNamespace(model=model, config=settings)


def test_a_gradient_that_grows_after_its_sum_has_begun_ends_the_run_with_the_remedy():
    job, server, peers, weight = placed_job("interleaved:2"), Server(0, 1), Peers(), torch.nn.Parameter(torch.ones(1))
    network = SimpleNamespace(peers=peers, server=server, view=SimpleNamespace(peers=lambda stage: ()))
    chunks = placed(job, server).chunks
    stages = [chunk_of(each) for each in chunks]
    stages[0].model.buffers[0].buckets[0].params = (weight,)
    update = LiveGradients(stages, network, job)
    update.expect(chunks[0])
    stages[0].on_gradient(weight)
    assert peers.said[0] == f"sum {chunks[0]}"
    with pytest.raises(RunError, match=r"--overlap-grad-reduce: .* leave it out"):
        stages[0].on_gradient(weight)


@pytest.mark.parametrize("wanted", [(False, False), (True, False), (False, True)])
def test_megatron_looks_at_each_gradient_before_its_sum_begins(monkeypatch, wanted):
    job, server, peers = placed_job("interleaved:2"), Server(0, 1), Peers()
    network = SimpleNamespace(peers=peers, server=server, view=SimpleNamespace(peers=lambda stage: ()))
    stages = [chunk_of(each) for each in placed(job, server).chunks]
    for each in stages:
        ddp = each.model.buffers[0].ddp_config
        ddp.check_for_nan_in_grad, ddp.check_for_large_grads = wanted

    def check_grads(group, *asked):
        assert asked == wanted
        peers.said.extend(f"look {int(each.grad_data[0])}" for each in group.buckets)

    monkeypatch.setattr(BucketGroup, "check_grads", check_grads)
    update = LiveGradients(stages, network, job)
    update.start_reduction(1)
    looked = ("look", "sum") if any(wanted) else ("sum",)
    assert peers.said == [f"{what} {number}" for number in (1, 11) for what in looked]


@pytest.mark.parametrize(("tokens", "divisor"), [(0, 1.0), (4, 4.0)])
def test_where_no_token_counts_nothing_is_divided(tokens, divisor):
    job, server, scaled = paper_job(stages=2), Server(0, 1), []
    everybody = SimpleNamespace(sum=lambda tensor: None)
    network = SimpleNamespace(peers=Peers(), all=everybody, server=server, view=SimpleNamespace(peers=lambda stage: ()))
    stage = chunk_of(1)
    stage.config.calculate_per_token_loss, stage.tokens = True, torch.tensor(tokens)
    for buffer in (*stage.model.buffers, *stage.model.expert_parallel_buffers):
        buffer.scale_gradients = scaled.append
    LiveGradients([stage], network, job).reduce(*placed(job, server).chunks, last=True)
    assert scaled == [1 / divisor] * 2


def test_virtual_stages_are_summed_while_others_compute():
    job, server, peers = placed_job("interleaved:2"), Server(0, 1), Peers()
    view = SimpleNamespace(peers=lambda stage: ())
    network = SimpleNamespace(peers=peers, server=server, view=view)
    first, second = placed(job, server).chunks
    update = LiveGradients([chunk_of(first), chunk_of(second)], network, job)
    # As the worker does, behind the last instruction that computes with the chunk.
    update.start_reduction(second)
    early = [f"sum {second}", f"sum {second + 10}"]
    assert peers.said == early
    update.reduce(second, last=False)
    assert peers.said == early
    update.reduce(first, last=True)
    assert peers.said[: len(early)] == early
    sums = {f"{what} {each + more}" for what in ("sum", "wait") for each in (first, second) for more in (0, 10)}
    assert len(peers.said) == len(sums)
    assert set(peers.said) == sums
    # The next iteration begins anew.
    peers.said.clear()
    update.reduce(first, last=True)
    assert len(peers.said) == 8
