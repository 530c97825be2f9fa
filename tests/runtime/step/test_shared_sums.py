"""Sums of which each peer gets its shares: the bits of a sum that all get, for fewer bytes on the wire."""

import ctypes
import random
import threading
import time

import msgspec
import pytest
import torch

from harness.ranks import results_of
from harness.sockets import bytes_sent
from harness.stand_in_library import built, connect_over, lacking
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.errors import ViewBroken
from recycle.runtime.net.connect import connect, connect_pair
from recycle.runtime.net.network import Share
from recycle.runtime.step.shared_sums import find_holders, spread
from tests.runtime.net.contract.ranks import Ends, Processes

PIPELINES, LENGTH = 4, 3 << 16


class Found(msgspec.Struct):
    sums: list[bytes]
    wholes: list[bytes]
    spread: list[bytes]
    bytes_of_sum: int
    bytes_of_whole: int
    bytes_of_spread: int


def addends(pipeline, dtype):
    """Of which the sum depends on the order."""
    generator = torch.Generator().manual_seed(pipeline)
    return [torch.randn(LENGTH, generator=generator).to(dtype) for _ in range(2)]


def shares_of(network, count, length):
    """Those of a tensor of a length, one after the other."""
    size = length // count
    holders = find_holders(network, count)
    return [Share(slice(turn * size, (turn + 1) * size), each) for turn, each in enumerate(holders)]


def bits(tensor):
    return tensor.view(torch.uint8).numpy().tobytes()


def bytes_sent_by_nccl():
    sent = ctypes.CDLL(str(built())).stand_in_sent
    sent.restype = ctypes.c_long
    return sent()


def sum_over(live, dtype=torch.float32, one_queue=None):
    """What each of the live peers finds, by pipeline; over gloo, or over the stand-in for NCCL."""
    if one_queue is not None and (why := lacking()):
        pytest.skip(why)
    meet = connect if one_queue is None else connect_over(built(), one_queue)
    count = bytes_sent if one_queue is None else bytes_sent_by_nccl
    view = View.among(Server(each, 0) for each in live)

    def body(member):
        server = view.servers[member.rank]
        network = meet(member.store(), view, server)
        network.connect_shares(find_holders(network, PIPELINES))
        network.peers.sum(torch.zeros(1))
        network.barrier()
        shares = shares_of(network, PIPELINES, LENGTH)
        wholes, tensors = addends(server.pipeline, dtype), addends(server.pipeline, dtype)

        def sent_by_now():
            """When all have got what they wait for."""
            network.barrier()
            return count()

        sent = [sent_by_now()]
        for each in wholes:
            network.peers.sum(each)
        sent.append(sent_by_now())
        # Several may be under way at once.
        for each in [network.start_shared_sum(tensor, shares) for tensor in tensors]:
            each.wait()
        sent.append(sent_by_now())
        mine = [place for place, each in shares if server in each]
        parts = [[bits(each[place]) for each in held for place in mine] for held in (tensors, wholes)]
        spread(network, [(each, shares) for each in tensors])
        sent.append(sent_by_now())
        all_have = [bits(each) for each in tensors]
        counts = (sent[2] - sent[1], sent[1] - sent[0], sent[3] - sent[2])
        network.barrier()
        return Found(*parts, all_have, *counts)

    return {live[rank]: found for rank, found in results_of(len(live), body, Found).items()}


TRANSPORTS = pytest.mark.parametrize("one_queue", [None, False, True], ids=["gloo", "nccl", "nccl in one queue"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@TRANSPORTS
def test_each_holder_gets_the_bits_of_a_whole_sum_for_as_many_bytes_as_it_has(dtype, one_queue):
    found = sum_over(range(PIPELINES), dtype, one_queue)
    # NCCL has a ring give all what one has, so those that hold it get it as well.
    spread_to = PIPELINES - (2 if one_queue is None else 1)
    for each in found.values():
        assert each.sums == each.wholes
        assert len(each.sums) == 4
        assert each.spread == found[0].spread
        size = 2 * dtype.itemsize * LENGTH
        assert each.bytes_of_sum == pytest.approx(size, rel=0.01)
        assert each.bytes_of_whole == pytest.approx(2 * (PIPELINES - 1) / PIPELINES * size, rel=0.01)
        assert each.bytes_of_spread == pytest.approx(spread_to / PIPELINES * size, rel=0.01)


@pytest.mark.parametrize("live", [(0, 2, 3), (1,)])
@TRANSPORTS
def test_if_peers_are_dead_all_holders_of_a_share_get_the_same_bits(live, one_queue):
    found = sum_over(live, one_queue=one_queue)
    known = {}
    for each in found.values():
        assert each.spread == found[live[0]].spread
        for part, whole in zip(each.sums, each.wholes, strict=True):
            sums = [torch.frombuffer(bytearray(content), dtype=torch.float32) for content in (part, whole)]
            torch.testing.assert_close(*sums)
            known.setdefault(part[:0] + whole[:64], set()).add(part)
    assert all(len(each) == 1 for each in known.values())


OPERATIONS = "reduce", "send", "broadcast"
"""What a shared sum and a spread are over NCCL, one after the other."""


def dying_at(peers, operation, launched, die):
    """Have a rank die when it comes to an operation, or when that has begun."""
    own, started = peers.carry_out, []

    def carry_out(calls):
        due = len(started) == OPERATIONS.index(operation)
        if due and not launched:
            die()
        started.append(own(calls))
        if due:
            die()
        return started[-1]

    peers.carry_out = carry_out


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("launched", [False, True], ids=["before", "in"])
@pytest.mark.parametrize("one_queue", [False, True], ids=["many queues", "one queue"])
def test_killed_between_the_sums_over_nccl(operation, launched, one_queue):
    if why := lacking():
        pytest.skip(why)
    everybody = tuple(Server(each, 0) for each in range(PIPELINES))

    def share(network):
        shares = shares_of(network, PIPELINES, LENGTH)
        tensor = torch.full((LENGTH,), float(network.server.pipeline))
        network.start_shared_sum(tensor, shares).wait()
        held = torch.cat([tensor[place] for place, each in shares if network.server in each])
        network.start_spread(tensor, shares).wait()
        return held, tensor

    def survive(rank):
        rank.server = everybody[rank.number]
        network = rank.connect(everybody, partners=())
        network.connect_shares(find_holders(network, PIPELINES))
        network.barrier()

        def die():
            rank.say("dying")
            rank.die()

        def give_up():
            while not rank.has_said("dying", 1):
                time.sleep(0.001)
            time.sleep(random.uniform(0, 0.1))
            network.unblock()

        if rank.number == 1:
            dying_at(network.peers, operation, launched, die)
        else:
            threading.Thread(target=give_up).start()
        # What is over by then is followed by what never will be.
        with pytest.raises(ViewBroken):
            share(network), share(network)
        live = tuple(each for each in everybody if each.pipeline != 1)
        network = rank.connect(live, epoch=1, partners=())
        network.connect_shares(find_holders(network, PIPELINES))
        for found in share(network):
            assert torch.equal(found, torch.full_like(found, sum(each.pipeline for each in live)))
        network.barrier()

    Processes(Ends(connect_over(built(), one_queue), connect_pair)).run(survive, PIPELINES, 60.0)
