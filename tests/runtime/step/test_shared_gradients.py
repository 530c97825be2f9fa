"""Peers that each step some shards sum what those need, for fewer bytes on the wire, and train as if all summed all."""

import msgspec
import pytest
import torch

from harness.ranks import results_of
from harness.sockets import bytes_sent
from harness.stand_in_library import built, connect_over, lacking
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.net.connect import connect
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.optimizers import make_optimizer
from recycle.runtime.step.shard_steps import ShardRule
from recycle.runtime.step.update import TorchUpdate

PIPELINES, STEPS = 4, 3
# The first layer's shards end inside its parameters; of the second one, each parameter is in one shard.
LAYERS = [[(1 << 16) + 128, 1 << 17], [1 << 15] * PIPELINES]


class Found(msgspec.Struct):
    parameters: list[list[bytes]]
    norms: list[list[float]]
    sent: list[int]


def make_update(shards, clip, addends):
    source = torch.Generator().manual_seed(0)
    stages = [[torch.nn.Parameter(torch.randn(size, generator=source)) for size in sizes] for sizes in LAYERS]
    rule = ShardRule(tuple(map(len, LAYERS)), PIPELINES) if shards else None
    return TorchUpdate(
        MainParameters(*stages),
        lambda members: make_optimizer("adamw", members, 0.01, 0.1, 0.9),
        PIPELINES,
        [0, 1],
        2,
        Method(clip, staggered=True, addends=addends, shards=rule),
    )


def iterate(update, pipeline, number):
    """An iteration, again until its sums fit."""
    while True:
        source = torch.Generator().manual_seed(100 * number + pipeline)
        for each in update.main:
            each.grad.add_(torch.randn(each.shape, generator=source))
        update.collect()
        # The second chunk's sum is under way while the first one's begins.
        for chunk in (1, 0):
            update.start_reduction(chunk)
        for chunk in (1, 0):
            update.reduce(chunk, last=chunk == 0)
        version = update.versions.newest
        for chunk in (1, 0):
            update.step(chunk, last=chunk == 0)
        update.validate()
        if update.versions.newest > version:
            return


def trained(live, clip, addends, one_queue=None):
    """What each of the live peers finds, with whole sums and with shares of them; over gloo, or a stand-in for NCCL."""
    if one_queue is not None and (why := lacking()):
        pytest.skip(why)
    meet = connect if one_queue is None else connect_over(built(), one_queue)
    view = View.among(Server(each, 0) for each in live)

    def body(process):
        server = view.servers[process.rank]
        network = meet(process.store(), view, server)
        network.peers.sum(torch.zeros(1))
        found = Found([], [], [])
        for shards in (False, True):
            update = make_update(shards, clip, addends)
            update.enter(network, 0)
            update.connect(network)
            network.barrier()
            sent = bytes_sent()
            norms = []
            for number in range(STEPS):
                iterate(update, server.pipeline, number)
                norms.append(update.norm)
            network.barrier()
            found.sent.append(bytes_sent() - sent)
            found.norms.append(norms)
            found.parameters.append([each.detach().numpy().tobytes() for each in update.main])
        network.barrier()
        return found

    return list(results_of(len(live), body, Found).values())


@pytest.mark.parametrize(
    ("live", "clip", "addends", "one_queue"),
    [
        (range(PIPELINES), None, 0, None),
        ((0, 2, 3), 1.0, 0, None),
        ((0, 2, 3), 1.0, PIPELINES, None),
        ((1, 2), 1.0, PIPELINES, None),
        ((3,), 1.0, 0, None),
        (range(PIPELINES), 1.0, PIPELINES, False),
        ((0, 2, 3), 1.0, PIPELINES, True),
    ],
)
def test_shares_of_sums_train_as_whole_sums(live, clip, addends, one_queue):
    found = trained(live, clip, addends, one_queue)
    for each in found:
        whole, shared = each.norms
        assert shared == pytest.approx(whole, rel=1e-6, nan_ok=True)
        assert each.parameters[1] == found[0].parameters[1]
        # A ring cuts tensors elsewhere, and adds floats in another order.
        if addends:
            assert each.parameters[1] == each.parameters[0]


def test_shares_send_less_than_whole_sums():
    size = 4 * sum(map(sum, LAYERS)) * STEPS
    for each in trained(range(PIPELINES), 1.0, 0):
        whole, shared = each.sent
        assert whole == pytest.approx(2 * (PIPELINES - 1) / PIPELINES * size, rel=0.02)
        # Of the gradients each sends as much as there is; of the parameters, what it owns to the two that lack it.
        assert shared == pytest.approx((1 + 2 / PIPELINES) * size, rel=0.02)
