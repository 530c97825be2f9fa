"""What the ranks of a server call while they compute: those calls of torch's that Megatron makes, as they are."""

from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
import torch
import torch.distributed as dist

from harness.gpt_runs import OPTIONS, text
from recycle.control.membership.view import ServerRank
from recycle.job import Server
from recycle.megatron.gpt.forward import forward_step
from recycle.megatron.gpt.model import build_stage, transformer_config
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place, groups_of, join_server
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.launch.process.local import launch
from recycle.runtime.net.stop_line import StopLine

RANKS, DEPTH = 8, 3
SEQUENCE, SAMPLES, HIDDEN = 64, 2, 64
WHOLE = SEQUENCE * SAMPLES * HIDDEN * 4
"""Bytes of the activations of a micro-batch, of all ranks together."""


class Counting:
    """Counts calls and the bytes that are put into each; see OwnRanks."""

    def __init__(self):
        self.calls, self.bytes = Counter(), Counter()

    def start(self, numbers, check, name, arguments, keywords):
        assert numbers == tuple(range(RANKS))
        given = arguments[1] if "gather" in name or "scatter" in name or "to_all" in name else arguments[0]
        self.calls[name] += 1
        self.bytes[name] += given.nbytes if isinstance(given, torch.Tensor) else sum(each.nbytes for each in given)
        return Unfinished()


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
    config = transformer_config(options, DEPTH, tensor_parallel=RANKS, sequence_parallel=True)
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
                own.calls.clear()
                own.bytes.clear()
                act()
                found[name] = {each: (own.calls[each], own.bytes[each]) for each in own.calls}
        gathers = [next((each[key] for key in each if "gather" in key), (0, 0)) for each in found.values()]
        scatters = [next((each[key] for key in each if "scatter" in key), (0, 0)) for each in found.values()]
        # Of attention and of the wide layers, each: in the forward pass one of either; in the backward pass the
        # gradient is gathered, and so is the input again for the weights; what comes of it is scattered.
        counts = [2, 2, 2] if split else [2, 4, 0]
        assert gathers == [(layers * each, layers * each * WHOLE // RANKS) for each in counts]
        assert scatters == [(layers * each, layers * each * WHOLE) for each in (2, 2, 0)]
        assert all(len(each) <= 2 for each in found.values()), found

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
