"""The rules of docs/transports.md, each as what some ranks do. They are numbered there as here."""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import pytest
import torch

from recycle.control.view import ServerRank
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost, Interrupted, ViewBroken
from recycle.runtime.net.network import Link, Network, Transfer
from recycle.runtime.net.transfer_key import STATE, Carried, TransferKey
from tests.runtime.net.contract.ranks import SERVERS, Rank

LARGE = 1 << 18
SOON = timedelta(milliseconds=200)


class NumberedRule(NamedTuple):
    """A rule.

    Attributes:
        number: in the document.
        run: what each rank does.
        count: how many ranks there are.
    """

    number: int
    run: Callable[[Rank], None]
    count: int


RULES: dict[str, NumberedRule] = {}
"""By their names."""


def rule(number: int, count: int = 2) -> Callable[[Callable[[Rank], None]], Callable[[Rank], None]]:
    def add(run: Callable[[Rank], None]) -> Callable[[Rank], None]:
        RULES[run.__name__] = NumberedRule(number, run, count)
        return run

    return add


def other(rank: Rank) -> Server:
    return SERVERS[1 - rank.number]


def pair(rank: Rank, epoch: int = 0, **more: object) -> Network:
    """The network of a view of the first two ranks, which are peers.

    Who lets go of it ends it, also for an end that is still about to connect.
    """
    return rank.connect(SERVERS[:2], epoch, **more)


def exchange(rank: Rank, link: Link, sent: torch.Tensor, received: torch.Tensor) -> list[Transfer]:
    """Start to send and to receive, in the order in which the other end receives and sends."""
    starts = [lambda: link.send(sent, STATE), lambda: link.receive(received, STATE)]
    return [start() for start in (starts if rank.number == 0 else reversed(starts))]


def numbered(number: int) -> TransferKey:
    return TransferKey(Carried.OUTPUT, 0, number)


def filled(value: float, size: int = 4) -> torch.Tensor:
    return torch.full((size,), float(value))


@rule(1)
def both_directions_carry_at_once(rank):
    """What one end sends is what the other one receives, while both send and receive, whatever the size."""
    network = pair(rank)
    link = network.link(other(rank))
    for size in (1, LARGE):
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


def frees(wait: Callable[[Network, Rank], None]) -> Callable[[Rank], None]:
    """A rule about who waits for something that will not come, until another thread gives it up."""

    def run(rank: Rank) -> None:
        network = pair(rank)
        network.barrier()
        if rank.number == 1:
            rank.hear("freed", 0)
            return
        waits = threading.Event()

        def give_up() -> None:
            waits.wait()
            time.sleep(0.05)  # or it has not begun to wait; then it must end too
            rank.alarm.set()
            network.unblock()

        thread = threading.Thread(target=give_up)
        thread.start()
        waits.set()
        with pytest.raises(ViewBroken):
            wait(network, rank)
        thread.join()
        rank.say("freed")

    return run


FREED = {
    "a_receive_is_given_up": lambda network, rank: network.link(other(rank)).receive(torch.zeros(4), STATE).wait(),
    "a_send_is_given_up": lambda network, rank: network.link(other(rank)).send(torch.zeros(LARGE), STATE).wait(),
    "a_reduction_is_given_up": lambda network, rank: network.all.sum(torch.zeros(4)),
    "a_barrier_is_given_up": lambda network, rank: network.barrier(),
}
for place, (name, wait) in enumerate(FREED.items()):
    RULES[name] = NumberedRule(10 + place, frees(wait), 2)


@rule(14)
def what_was_given_up_stays_so(rank):
    """Whatever is waited for afterwards raises too, when it was started before as when it is started now."""
    network = pair(rank)
    network.barrier()
    link = network.link(other(rank))
    if rank.number == 0:
        started = link.receive(torch.zeros(4), STATE)
        rank.alarm.set()
        network.unblock()
        for wait in (started.wait, lambda: link.receive(torch.zeros(4), STATE).wait(), network.barrier):
            with pytest.raises(ViewBroken):
                wait()
        rank.say("over")
    else:
        rank.hear("over", 0)


@rule(15)
def giving_up_can_be_repeated(rank):
    """By any thread and at any time, be nothing under way."""
    network = pair(rank)
    network.barrier()
    rank.alarm.set()
    threads = [threading.Thread(target=network.unblock) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    network.unblock()
    with pytest.raises(ViewBroken):
        network.barrier()


@rule(16, count=3)
def the_dead_hold_nobody(rank):
    """Giving up needs nothing of those that are dead, or that do not answer."""
    network = rank.connect()
    network.barrier()
    if rank.number == 1:
        rank.say("dies")
        rank.die()
    rank.hear("dies", 1)
    threading.Timer(0.05, lambda: (rank.alarm.set(), network.unblock())).start()
    if rank.number == 0:
        # Somebody else's silence is no reason to stay either.
        with pytest.raises(ViewBroken):
            network.link(SERVERS[2]).receive(torch.zeros(4), STATE).wait()
        rank.say("freed")
    else:
        with pytest.raises(ViewBroken):
            network.all.sum(torch.zeros(4))
        rank.hear("freed", 0)


@rule(17)
def connecting_is_given_up(rank):
    """Who waits for others to connect leaves when the view is over."""
    if rank.number == 0:
        threading.Timer(0.1, rank.alarm.set).start()
        with pytest.raises(Interrupted):
            pair(rank)
        rank.say("left")
    else:
        rank.hear("left", 0)


@rule(18)
def connecting_has_an_end(rank):
    """Who is not let in within the time for it is told so."""
    if rank.number == 0:
        with pytest.raises(ConnectionLost):
            pair(rank, rebuild=SOON)
        rank.say("left")
    else:
        rank.hear("left", 0)


@rule(19)
def a_wait_has_an_end(rank):
    """A partner that is silent for too long is an error, for a receive, a send and a reduction."""
    waits = [
        lambda network: network.link(other(rank)).receive(torch.zeros(4), STATE).wait(),
        lambda network: network.link(other(rank)).send(torch.zeros(LARGE), STATE).wait(),
        lambda network: network.all.sum(torch.zeros(4)),
    ]
    for epoch, wait in enumerate(waits):
        network = pair(rank, epoch, transfer=timedelta(seconds=1) if rank.number == 0 else timedelta(seconds=100))
        if rank.number == 0:
            with pytest.raises(ViewBroken):
                wait(network)
            network.unblock()  # or what it waited for would be in the way of the next view
            rank.say(f"left {epoch}")
        else:
            rank.hear(f"left {epoch}", 0)


@rule(20, count=3)
def a_view_is_rebuilt_without_the_dead(rank):
    """The survivors connect under the next epoch, in the same processes, whatever was under way before."""
    network = rank.connect()
    network.barrier()
    if rank.number == 1:
        rank.say("dies")
        rank.die()
    kept = network.link(SERVERS[1]).receive(torch.zeros(4), STATE), network.all.start_sum(torch.zeros(4))
    rank.hear("dies", 1)
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


def _stay(rank: Rank) -> None:
    """Until all four are here: others may still connect to this one."""
    rank.say("done")
    rank.hear("done", *range(4))


@rule(23, count=4)
def planes_never_meet(rank):
    """The ranks of one server form a network each, with those of the same place in other servers."""
    rank.server = SERVERS[rank.number % 2]
    total = filled(rank.number)
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
        counts.append(_settled(rank))
    assert counts[-1] <= counts[1], counts


def _settled(rank: Rank) -> int:
    """What is held when nothing more is let go of; ends take their time."""
    least, since = rank.count_leftovers(), time.monotonic()
    while time.monotonic() - since < 0.15:
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
    """To give up a network leaves the process's other connections as they are: the store's, and private links."""
    network = pair(rank)
    private = rank.connect_pair(rank.number == 0)
    received = torch.zeros(4)
    rank.alarm.set()
    network.unblock()
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
