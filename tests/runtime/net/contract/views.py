"""Rules of views: what one leaves to the next, what belongs to whom, and the ranks of a server."""

import gc
import math
import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch

from recycle.control.membership.view import ServerRank
from recycle.runtime.errors import ViewBroken
from recycle.runtime.net.transfer_key import STATE
from tests.runtime.net.contract.ranks import SERVERS, Rank
from tests.runtime.net.contract.writing import NumberedRule, exchange, filled, numbering, other, pair

RULES: dict[str, NumberedRule] = {}
"""By their names."""

rule = numbering(RULES)


@rule(20, count=3)
def a_view_is_rebuilt_without_the_dead(rank):
    """The survivors connect under the next epoch, in the same processes, whatever was under way before."""
    network = rank.connect()
    network.barrier()
    if rank.number == 1:
        # What begins with a rank that is dead may fail at once.
        rank.hear("begun", 0, 2)
        rank.die()
    kept = network.link(SERVERS[1]).receive(torch.zeros(4), STATE), network.all.start_sum(torch.zeros(4))
    rank.say("begun")
    rank.hear("begun", 0, 2)
    network.unblock()
    survivors = (SERVERS[0], SERVERS[2])
    rebuilt = rank.connect(survivors, 1)
    total = torch.ones(4)
    rebuilt.all.sum(total)
    assert torch.equal(total, filled(2))
    del kept


@rule(21)
def views_share_nothing(rank):
    """To give up the last view leaves the present one as it is."""
    last = pair(rank, 0)
    last.barrier()
    network = pair(rank, 1)
    link, received = network.link(other(rank)), torch.zeros(4)
    if rank.number == 0:
        rank.hear("given up", 1)
        last.unblock()
        link.send(filled(3), STATE).wait()
    else:
        under_way = link.receive(received, STATE)
        last.unblock()
        last.unblock()
        rank.say("given up")
        under_way.wait()
        assert torch.equal(received, filled(3))
    network.barrier()


@rule(22)
def nothing_crosses_from_view_to_view(rank):
    """What was sent in the last view is not received in the present one."""
    last = pair(rank, 0)
    last.barrier()
    if rank.number == 0:
        late = last.link(other(rank)).send(filled(1), STATE)
        last.unblock()
    network = pair(rank, 1)
    if rank.number == 0:
        network.link(other(rank)).send(filled(2), STATE).wait()
        with pytest.raises(ViewBroken):
            late.wait()
    else:
        received = torch.zeros(4)
        network.link(other(rank)).receive(received, STATE).wait()
        assert torch.equal(received, filled(2))


def _pass_time(seconds: float, over: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while time.monotonic() - begin < seconds and not over():
        time.sleep(0.01)


def _stay(rank: Rank) -> None:
    """Until all four are here: others may still connect to this one."""
    rank.say("done")
    rank.hear("done", *range(4))


@rule(23, count=4)
def planes_never_meet(rank):
    """The ranks of one server form a network each, with those of the same place in other servers."""
    rank.server = SERVERS[rank.number % 2]
    total = filled(rank.number)
    if rank.number in (1, 2):
        # So long the others, who have different planes, could meet.
        _pass_time(1.0, lambda: rank.has_said("done", 0))
    network = rank.connect(SERVERS[:2], rank=ServerRank(rank.number // 2, 2))
    network.all.sum(total)
    assert int(total[0]) == (1 if rank.number < 2 else 5)
    _stay(rank)


@rule(24)
def a_view_that_is_left_leaves_nothing(rank):
    """Neither sockets nor threads: who drops its network has no more to do."""
    counts = []
    for epoch in range(6):
        network = pair(rank, epoch)
        network.barrier()
        network.unblock()
        rank.say(f"through {epoch}")
        rank.hear(f"through {epoch}", 1 - rank.number)
        del network
        gc.collect()
        counts.append(_settled(rank, counts[1] if epoch > 1 else math.inf))
    assert counts[-1] <= counts[1], counts


def _settled(rank: Rank, allowed: float) -> int:
    """What is held when nothing more is let go of; ends take their time, which they get where too much is left."""
    least, since = rank.count_leftovers(), time.monotonic()
    while time.monotonic() - since < (0.15 if least <= allowed else 20.0):
        time.sleep(0.01)
        found = rank.count_leftovers()
        if found < least:
            least, since = found, time.monotonic()
    return least


@rule(25)
def a_tensor_is_free_after_its_wait(rank):
    """The transport keeps no tensor whose transfer or reduction was waited for."""
    network = pair(rank)
    link = network.link(other(rank))
    held = []
    for _ in range(10):
        sent, received, total = torch.ones(4), torch.zeros(4), torch.ones(4)
        held += [weakref.ref(each) for each in (sent, received, total)]
        under_way = [*exchange(rank, link, sent, received), network.all.start_sum(total)]
        for each in under_way:
            each.wait()
        del sent, received, total, under_way, each
    network.barrier()
    # What was waited for last may be kept until the next wait.
    assert sum(each() is not None for each in held) <= 3


@rule(26)
def what_is_not_its_own_is_left_alone(rank):
    """To give up a network leaves the process's other connections as they are: the store's, and private links.

    So does giving up a private link, where other threads made connections between its beginning and its end.
    """
    first = rank.number == 0
    waits = threading.Event()
    given_up = []

    def connect_slowly():
        given_up.append(rank.connect_pair(first, "slow", waits.set))

    slow = threading.Thread(target=connect_slowly, daemon=True)
    if first:
        slow.start()
        waits.wait()
    network = pair(rank)
    private = rank.connect_pair(first)
    if not first:
        slow.start()
    slow.join()
    rank.say("connected")
    rank.hear("connected", 1 - rank.number)
    received = torch.zeros(4)
    rank.alarm.set()
    network.unblock()
    given_up[0].unblock()
    rank.say("given up")
    rank.hear("given up", 1 - rank.number)
    for each in exchange(rank, private, filled(5), received):
        each.wait()
    assert torch.equal(received, filled(5))


@rule(27)
def a_private_link_is_given_up(rank):
    """As a network is."""
    private = rank.connect_pair(rank.number == 0)
    if rank.number == 0:
        threading.Timer(0.1, private.unblock).start()
        with pytest.raises(ViewBroken):
            private.receive(torch.zeros(4), STATE).wait()
        rank.say("freed")
    else:
        rank.hear("freed", 0)


@rule(28, count=1)
def a_view_of_one_needs_nobody(rank):
    network = rank.connect(SERVERS[:1])
    total = torch.ones(4)
    network.all.sum(total)
    network.peers.maximum(total)
    network.barrier()
    assert torch.equal(total, torch.ones(4))


@rule(29, count=4)
def the_ranks_of_a_server_meet(rank):
    """Those of each server have a group of their own."""
    rank.server = SERVERS[rank.number // 2]
    total = filled(rank.number)
    network = rank.connect(SERVERS[:2], rank=ServerRank(rank.number % 2, 2))
    network.ranks.sum(total)
    assert int(total[0]) == (1 if rank.number < 2 else 5)
    _stay(rank)


@rule(30)
def the_ranks_of_a_server_are_given_up(rank):
    """As all others are: one of them may be dead, and another one wait for it."""
    rank.server = SERVERS[0]
    network = rank.connect(SERVERS[:1], rank=ServerRank(rank.number, 2))
    network.ranks.sum(torch.zeros(4))
    if rank.number == 0:
        rank.alarm.set()
        threading.Timer(0.1, network.unblock).start()
        with pytest.raises(ViewBroken):
            network.ranks.sum(torch.zeros(4))
        rank.say("freed")
    else:
        rank.hear("freed", 0)
