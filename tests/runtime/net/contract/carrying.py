"""Rules of what is carried: by links, and by groups."""

import time

import torch

from recycle.runtime.net.transfer_key import STATE
from tests.runtime.net.contract.ranks import SERVERS
from tests.runtime.net.contract.writing import LARGE, NumberedRule, filled, numbered, numbering, other, pair

RULES: dict[str, NumberedRule] = {}
"""By their names."""

rule = numbering(RULES)


@rule(1)
def both_directions_carry_at_once(rank):
    """What one end sends is what the other one receives, while both send and receive, whatever the size."""
    network = pair(rank)
    link = network.link(other(rank))
    for size in (0, 1, LARGE):
        received = torch.zeros(size)
        under_way = [link.send(filled(rank.number + 1, size), STATE), link.receive(received, STATE)]
        for each in under_way:
            each.wait()
        assert torch.equal(received, filled(2 - rank.number, size))
    # Who ends at once may take along what the other one has not read yet.
    rank.say("through")
    rank.hear("through", 1 - rank.number)


@rule(2)
def order_is_kept(rank):
    """The order of their start says which send belongs to which receive."""
    network = pair(rank)
    link = network.link(other(rank))
    if rank.number == 0:
        for each in [link.send(filled(place), numbered(place)) for place in range(5)]:
            each.wait()
        return
    received = [torch.zeros(4) for _ in range(5)]
    for each in [link.receive(tensor, numbered(place)) for place, tensor in enumerate(received)]:
        each.wait()
    assert [int(each[0]) for each in received] == [0, 1, 2, 3, 4]


@rule(3)
def a_start_waits_for_nobody(rank):
    """Starting a transfer or a reduction returns though the other end has not come to it."""
    network = pair(rank)
    link = network.link(other(rank))
    received, total = torch.zeros(LARGE), torch.ones(4)
    if rank.number == 0:
        under_way = [link.send(torch.ones(LARGE), STATE), link.receive(received, STATE)]
        reduction = network.all.start_sum(total)
        rank.say("started")
    else:
        rank.hear("started", 0)
        under_way = [link.receive(received, STATE), link.send(torch.ones(LARGE), STATE)]
        reduction = network.all.start_sum(total)
    for each in [*under_way, reduction]:
        each.wait()


@rule(4, count=3)
def links_do_not_wait_for_each_other(rank):
    """A transfer that nobody takes holds up neither another link nor a group."""
    network = rank.connect()
    if rank.number == 0:
        stuck = network.link(SERVERS[2]).send(torch.ones(LARGE), STATE)
        network.link(SERVERS[1]).send(torch.ones(4), STATE).wait()
        network.peers.sum(torch.ones(4))
        rank.say("done")
        stuck.wait()
    elif rank.number == 1:
        network.link(SERVERS[0]).receive(torch.zeros(4), STATE).wait()
        network.peers.sum(torch.ones(4))
    else:
        rank.hear("done", 0)
        network.link(SERVERS[0]).receive(torch.zeros(LARGE), STATE).wait()
    # A rank that ends breaks its connections, and so what others still wait for.
    network.barrier()


@rule(5, count=4)
def a_link_is_made_when_both_ask_for_it(rank):
    """A partner that nobody named is reached all the same."""
    network = rank.connect(SERVERS, partners=[])
    if rank.number == 0:
        network.link(SERVERS[1]).send(filled(7), STATE).wait()
    if rank.number == 1:
        received = torch.zeros(4)
        network.link(SERVERS[0]).receive(received, STATE).wait()
        assert torch.equal(received, filled(7))
    network.barrier()


@rule(6, count=3)
def all_get_the_same_bits(rank):
    """A sum is the same on every rank, to the bit, and is the sum."""
    network = rank.connect()
    generator = torch.Generator().manual_seed(rank.number)
    total = torch.rand(1000, generator=generator)
    network.all.sum(total)
    expected = sum(torch.rand(1000, generator=torch.Generator().manual_seed(each)) for each in range(3))
    assert torch.allclose(total, expected)
    network.all.sum(torch.zeros(0))
    least, most = total.neg(), total.clone()
    network.all.maximum(least)
    network.all.maximum(most)
    assert torch.equal(most, total)
    assert torch.equal(least.neg(), total)


@rule(7)
def reductions_of_a_group_keep_their_order(rank):
    """Those of a group are told apart by the order of their start; they may be waited for in any."""
    network = pair(rank)
    group = network.all
    tensors = [filled(place + rank.number) for place in range(4)]
    started = [group.start_sum(tensors[0]), group.start_maximum(tensors[1])]
    started += [group.start_sum(tensors[2]), group.start_maximum(tensors[3])]
    for each in started if rank.number else reversed(started):
        each.wait()
    assert [int(each[0]) for each in tensors] == [1, 2, 5, 4]


@rule(8, count=3)
def a_group_is_of_its_servers_alone(rank):
    """Who is not in it has nothing to do with it."""
    network = rank.connect()
    if rank.number == 1:
        rank.hear("summed", 0, 2)
    else:
        total = torch.ones(4)
        network.group("ends", [SERVERS[0], SERVERS[2]]).sum(total)
        assert torch.equal(total, filled(2))
        rank.say("summed")
    ones = torch.ones(4)
    network.peers.sum(ones)
    assert torch.equal(ones, filled(1 if rank.number == 2 else 2))


@rule(9)
def nobody_leaves_a_barrier_before_all_have_come(rank):
    network = pair(rank)
    if rank.number == 0:
        rank.say("enters")
        network.barrier()
        assert rank.has_said("comes", 1)
    else:
        rank.hear("enters", 0)
        time.sleep(0.3)  # in which the other one would leave
        rank.say("comes")
        network.barrier()
