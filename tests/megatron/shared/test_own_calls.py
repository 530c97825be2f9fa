"""What the ranks of a server call while they compute: those calls of torch's that Megatron makes, as they are."""

from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.gpt_runs import OPTIONS, text
from harness.local import launch
from recycle.control.membership.view import ServerRank
from recycle.job import Server
from recycle.megatron.flag.device.cpu_training import train_on_cpu
from recycle.megatron.gpt.forward import forward_step
from recycle.megatron.gpt.model import build_stage, transformer_config
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place, groups_of, join_server
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.net.process_groups import make_replaceable_groups
from recycle.runtime.net.stop_line import StopLine

RANKS, DEPTH = 8, 3
SEQUENCE, SAMPLES, HIDDEN = 64, 2, 64
WHOLE = SEQUENCE * SAMPLES * HIDDEN * 4
"""Bytes of the activations of a micro-batch, of all ranks together."""


class Counting:
    """Counts calls and the bytes that are put into each; see OwnRanks."""

    def __init__(self):
        self.calls, self.bytes = Counter(), Counter()
        self.sizes = []

    def start(self, group, check, name, arguments, keywords):
        assert group.numbers == tuple(range(RANKS))
        given = arguments[1] if "gather" in name or "scatter" in name or "to_all" in name else arguments[0]
        self.calls[name] += 1
        self.bytes[name] += size_of(given)
        self.sizes.append((name, size_of(given), size_of(arguments[0])))
        if "all_gather" in name or "allgather" in name:
            # As if all had the same.
            arguments[0].view(RANKS, -1).copy_(arguments[1].view(1, -1))
        return Unfinished()

    def take(self):
        """What was counted since this was last called, by call."""
        found = {each: (self.calls[each], self.bytes[each]) for each in self.calls}
        self.calls.clear()
        self.bytes.clear()
        return found


def size_of(tensors):
    """In bytes."""
    return tensors.nbytes if isinstance(tensors, torch.Tensor) else sum(each.nbytes for each in tensors)


class Unfinished(dist.Work):
    """A call that is under way until it is waited for."""

    def __init__(self):
        super().__init__()
        self.waited = False

    def is_completed(self):
        return self.waited

    def wait(self, timeout=None):
        self.waited = True
        return True


def make_stage(layers, own):
    """A middle stage, of a server of eight ranks of which only this one is there."""
    run_on_cpu()
    collectives = RankCollectives(ServerRank(0, RANKS))
    groups = join_server(Server(0, 1), DEPTH, collectives)
    line = StopLine(lambda: None, own.start, lambda _: None, 1.0)
    collectives.connect(SimpleNamespace(line=line))
    options = msgspec.structs.replace(OPTIONS, layers=DEPTH * layers, hidden=HIDDEN, heads=RANKS, sequence=SEQUENCE)
    options = msgspec.structs.replace(options, tensor_parallel=RANKS, sequence_parallel=True)
    config = transformer_config(options, DEPTH)
    model = build_stage(options, config, 1, DEPTH, groups_of(groups, Place(1, DEPTH)))
    shape = (SEQUENCE // RANKS, SAMPLES, HIDDEN)
    return MegatronStage(model, Place(1, DEPTH), shape, 1, forward_step, text(options)), line, shape


@pytest.mark.parametrize("split", [False, True])
def test_with_tensor_and_sequence_parallelism_they_are_those_of_stock_and_nothing_else(split):
    layers = 2

    def body(_):
        own = Counting()
        stage, line, shape = make_stage(layers, own)
        micro_batch, found = MicroBatch(0, 0, 0), {}
        with line.list():
            for name, act in {
                "forward": lambda: stage.forward(micro_batch, torch.randn(shape)),
                "input": lambda: (stage.input_gradient if split else stage.backward)(micro_batch, torch.randn(shape)),
                "weight": lambda: stage.weight_gradient(micro_batch) if split else None,
            }.items():
                own.take()
                act()
                found[name] = own.take()
        gathers = [next((each[key] for key in each if "gather" in key), (0, 0)) for each in found.values()]
        scatters = [next((each[key] for key in each if "scatter" in key), (0, 0)) for each in found.values()]
        # Of attention and of the wide layers, each: in the forward pass one of either; in the backward pass the
        # gradient is gathered, and so is the input again for the weights; what comes of it is scattered.
        counts = [2, 2, 2] if split else [2, 4, 0]
        assert gathers == [(layers * each, layers * each * WHOLE // RANKS) for each in counts]
        assert scatters == [(layers * each, layers * each * WHOLE) for each in (2, 2, 0)]
        assert all(len(each) <= 2 for each in found.values()), found

    launch(1, body)


def join_ranks(own):
    """One of eight ranks of a server; gives the line at which they stop together."""
    run_on_cpu()
    collectives = RankCollectives(ServerRank(0, RANKS))
    make_replaceable_groups(collectives.take_over)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=RANKS)
    line = StopLine(lambda: None, own.start, lambda _: None, 1.0)
    collectives.connect(SimpleNamespace(line=line))
    return line


def test_experts_get_each_token_once_and_give_it_back_once():
    """And beside that the ranks tell each other nothing but how many tokens there are for each expert."""
    tokens, chosen = 32, 2

    def body(_):
        own = Counting()
        train_on_cpu()
        line = join_ranks(own)
        parallel_state.initialize_model_parallel(expert_model_parallel_size=RANKS, create_gloo_process_groups=False)
        model_parallel_cuda_manual_seed(0)
        config = TransformerConfig(
            num_layers=1,
            hidden_size=HIDDEN,
            num_attention_heads=4,
            num_moe_experts=RANKS,
            expert_model_parallel_size=RANKS,
            moe_token_dispatcher_type="alltoall",
            moe_router_topk=chosen,
            moe_router_load_balancing_type="none",
            add_bias_linear=False,
            use_cpu_initialization=True,
        )
        spec = get_gpt_layer_local_spec(num_experts=RANKS, moe_grouped_gemm=False)
        layer = build_module(spec.submodules.mlp, config=config)
        layer.set_layer_number(1)
        given = torch.randn(tokens, 1, HIDDEN, requires_grad=True)
        with line.list():
            own.sizes.clear()
            output, _ = layer(given)
            forward, own.sizes = own.sizes, []
            output.sum().backward()
            backward = own.sizes
        exchanged = [[each[1:] for each in found if "to" in each[0]] for found in (forward, backward)]
        others = [each for each in forward + backward if "to" not in each[0]]
        ((_, told, _),) = others
        assert told == RANKS * torch.int64.itemsize
        ((sent, got), (weights, got_weights), back) = exchanged[0]
        assert sent == tokens * chosen * HIDDEN * torch.float32.itemsize
        assert (weights, got_weights) == (sent // HIDDEN, got // HIDDEN)
        assert back == (got, sent)
        # Gradients go the same ways back.
        assert sorted(exchanged[1]) == sorted((there, here) for here, there in exchanged[0])

    launch(1, body)


def test_a_ring_of_ranks_sends_its_own_payload_and_nothing_else():
    """As attention over a divided sequence does: each step is on its way while the one before is computed."""
    payload = torch.ones(1024)

    def body(_):
        own = Counting()
        with join_ranks(own).list():
            for _ in range(RANKS - 1):
                received = torch.empty_like(payload)
                ring = [dist.P2POp(dist.isend, payload, 1), dist.P2POp(dist.irecv, received, RANKS - 1)]
                works = dist.batch_isend_irecv(ring)
                assert not any(each.is_completed() for each in works)
                for each in works:
                    each.wait()
        each_way = (RANKS - 1, (RANKS - 1) * payload.nbytes)
        assert own.take() == {"send": each_way, "recv": each_way}

    launch(1, body)


def test_what_is_not_waited_for_is_returned_unfinished():
    def body(_):
        stage, line, _ = make_stage(1, Counting())
        group = dist.group.WORLD
        with line.list():
            for work in (
                dist.all_reduce(torch.ones(2), group=group, async_op=True),
                dist.isend(torch.ones(2), 1, group=group),
                dist.irecv(torch.ones(2), 7, group=group),
            ):
                assert not work.is_completed()
                work.wait()
                assert work.is_completed()
        assert stage.held() == (0, 0)

    launch(1, body)
