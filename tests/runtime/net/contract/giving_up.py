"""Rules of waits that end though nobody comes: who gives up, and what is left then."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch

from recycle.runtime.errors import ConnectionLost, Interrupted, ViewBroken
from recycle.runtime.net.network import Network
from recycle.runtime.net.transfer_key import STATE
from tests.runtime.net.contract.ranks import SERVERS, Rank
from tests.runtime.net.contract.writing import LARGE, SOON, NumberedRule, numbering, other, pair

RULES: dict[str, NumberedRule] = {}
"""By their names."""

rule = numbering(RULES)


def frees(
    wait: Callable[[Network, Rank], None], prepare: Callable[[Network], None] = lambda _: None
) -> Callable[[Rank], None]:
    """A rule about who waits for something that will not come, until another thread gives it up.

    Args:
        wait: does so.
        prepare: what both do before.
    """

    def run(rank: Rank) -> None:
        network = pair(rank)
        prepare(network)
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
    rank.lose(1, 0, 2)
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
