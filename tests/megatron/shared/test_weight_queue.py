"""The backward split of Megatron's layers: the same bits as a whole backward pass, at every place in a pipeline."""

import msgspec
import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from harness.gpt_runs import OPTIONS, text
from harness.local import launch
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import ServerRank, View
from recycle.job import Server
from recycle.megatron.gpt.forward import forward_step
from recycle.megatron.gpt.model import build_stage, transformer_config
from recycle.megatron.shared import weight_queue
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place, groups_of, join_server
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.own_ranks import OwnRanks
from recycle.runtime.net.stop_line import StopLine

DEPTH = 3
SHAPE = (OPTIONS.sequence, OPTIONS.micro_batch_size, OPTIONS.hidden)
VARIANTS = {
    "plain": {},
    "dropout": {"dropout": 0.2},
    "tied": {"tied": True},
    "recompute": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "swiglu": {"gated_linear_unit": True, "add_bias_linear": False, "activation_func": torch.nn.functional.silu},
}


def make_stage(groups, number, changes, shape=SHAPE):
    ours = {key: value for key, value in changes.items() if hasattr(OPTIONS, key)}
    options = msgspec.structs.replace(OPTIONS, layers=DEPTH, **ours)
    config = transformer_config(options, DEPTH, **{key: changes[key] for key in changes.keys() - ours})
    model = build_stage(options, config, number, DEPTH, groups)
    return MegatronStage(model, Place(number, DEPTH), shape, 4, forward_step, text(options))


def run(stage, split, shape=SHAPE):
    back = []
    for number in range(2):
        micro_batch = MicroBatch(0, 0, number)
        torch.manual_seed(number)
        stage.forward(micro_batch, torch.randn(shape) if stage.input else None)
        gradient = torch.randn(shape) if stage.output else None
        if split:
            back.append(stage.input_gradient(micro_batch, gradient))
            assert stage.held() == (0, number + 1)
        else:
            back.append(stage.backward(micro_batch, gradient))
    if split:
        assert stage.held() == (0, 2)
        before = [each.grad for each in stage.parameters() if each.ndim == 2]
        assert any(each is None for each in before), "nothing was left for W"
        for number in range(2):
            stage.weight_gradient(MicroBatch(0, 0, number))
    assert stage.held() == (0, 0)
    return back, [each.grad for each in stage.parameters()], stage.take_losses()


def require_same(stage, shape=SHAPE):
    """A whole and a split backward pass of a stage have the same bits."""
    whole = run(stage, False, shape)
    for parameter in stage.parameters():
        parameter.grad = None
    split = run(stage, True, shape)
    assert whole[2] == split[2]
    assert len(whole[2]) == (0 if stage.output else 2)
    for one, other in zip(whole[0] + whole[1], split[0] + split[1], strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("number", range(DEPTH))
@pytest.mark.parametrize("variant", VARIANTS)
def test_split_and_whole_backward_agree_to_the_bit(number, variant):
    def body(member):
        run_on_cpu()
        require_same(make_stage(join_server(Server(0, number), DEPTH), number, VARIANTS[variant]))

    launch(1, body)


def test_with_sequence_parallelism_they_agree_and_only_parts_of_inputs_are_kept():
    view, server = View.among([Server(0, 0)]), Server(0, 0)
    sequence, samples, hidden = SHAPE
    shape = (sequence // 2, samples, hidden)
    changes = {"tensor_parallel": 2, "sequence_parallel": True, "dropout": 0.2, "tied": True}

    def require_all(groups):
        for number in range(DEPTH):
            stage = make_stage(groups_of(groups, Place(number, DEPTH)), number, changes, shape)
            require_same(stage, shape)
            if stage.input and stage.output:
                micro_batch = MicroBatch(1, 0, 0)
                stage.forward(micro_batch, torch.randn(shape))
                stage.input_gradient(micro_batch, torch.randn(shape))
                # In widths of hidden, for each token: of attention in, what comes of it, and the wider layers' two.
                inputs, gradients = 0.5 + 0.5 + 0.5 + 2, 1.5 + 1 + 2 + 1
                assert stage.owed_bytes() == (inputs + gradients) * sequence * samples * hidden * 4

    def body(member):
        run_on_cpu()
        rank = ServerRank(member.rank, 2)
        collectives = RankCollectives(rank)
        groups = join_server(server, DEPTH, collectives)
        own = OwnRanks(member.store, Participant(view.members[0], rank), NetworkOptions())
        line = StopLine(lambda: None, own.start, lambda _: None, 60.0)
        network = connect(member.store(), view, server, rank=rank, line=lambda _: line)
        collectives.connect(network)
        with line.list():
            require_all(groups)
        network.barrier()

    launch(2, body)


def test_what_cannot_be_split_is_computed_at_once(monkeypatch):
    # Stands in for fused accumulation, which needs a GPU.
    monkeypatch.setattr(weight_queue, "WHOLE", ("use_bias",))

    def body(member):
        run_on_cpu()
        stage = make_stage(join_server(Server(0, 1), DEPTH), 1, {})
        whole = run(stage, split=False)
        for parameter in stage.parameters():
            parameter.grad = None
        stage.forward(MicroBatch(0, 0, 0), torch.randn(SHAPE))
        stage.input_gradient(MicroBatch(0, 0, 0), torch.randn(SHAPE))
        at_once = {name for name, each in stage.model.named_parameters() if each.ndim == 2 and each.grad is not None}
        assert at_once == {"decoder.layers.0.self_attention.linear_qkv.weight"}
        stage.drop()
        for parameter in stage.parameters():
            parameter.grad = None
        split = run(stage, split=True)
        for one, other in zip(whole[0] + whole[1], split[0] + split[1], strict=True):
            assert torch.equal(one, other)

    launch(1, body)


def test_megatrons_ddp_reduces_split_layers_bucket_by_bucket_as_their_gradients_come():
    options = msgspec.structs.replace(OPTIONS, layers=2)
    data = text(options)

    def build(groups, **settings):
        config = transformer_config(options, 1)
        settings = DistributedDataParallelConfig(overlap_grad_reduce=bool(settings), **settings)
        model = DistributedDataParallel(config, settings, build_stage(options, config, 0, 1, groups))
        return model, MegatronStage(model, Place(0, 1), SHAPE, 2, forward_step, data)

    def body(member):
        run_on_cpu()
        store = dist.PrefixStore("world", member.store())
        dist.init_process_group("gloo", store=store, rank=member.rank, world_size=member.count)
        parallel_state.initialize_model_parallel(1, 1)
        model_parallel_cuda_manual_seed(0)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        stock, at_once = build(groups)
        model, split = build(groups, delay_wgrad_compute=True, bucket_size=4000)
        assert len(model.bucket_groups) > 2
        begun = []
        for each in model.parameters():
            # Behind the hook by which DDP hears of this weight.
            getattr(each, weight_queue.HOOKS, []).append(
                lambda: begun.append(sum(each.grad_reduce_handle is not None for each in model.bucket_groups))
            )
        for turn in range(3):
            first, last = (MicroBatch(turn, member.rank, number) for number in range(2))
            stock.zero_grad_buffer()
            for each in (first, last):
                at_once.forward(each, None)
                at_once.backward(each, None)
            stock.finish_grad_sync()

            model.zero_grad_buffer()
            for each in (first, last):
                split.forward(each, None)
            with model.no_sync():
                split.input_gradient(first, None)
            if turn == 2:
                with model.no_sync():
                    split.weight_gradient(first)
                begun.clear()
                split.backward(last, None)
            else:
                split.input_gradient(last, None)
                with model.no_sync():
                    split.weight_gradient(first)
                begun.clear()
                split.weight_gradient(last)
            # In its first iteration it counts how often it is told of each gradient.
            if turn:
                assert begun == sorted(begun)
                assert begun[0] < begun[len(begun) - 2] <= begun[-1] == len(model.bucket_groups)
            model.finish_grad_sync()
            for one, other in zip(stock.parameters(), model.parameters(), strict=True):
                assert torch.equal(one.main_grad, other.main_grad)
                assert one.main_grad.any()
        dist.destroy_process_group()

    launch(2, body)
