"""The rules of what may be relied on where a partner has given up, and of what a device does meanwhile."""

import threading
import time
from contextlib import suppress

import torch

from recycle.runtime.errors import ViewBroken
from recycle.runtime.net.transfer_key import STATE
from tests.runtime.net.contract.giving_up import frees
from tests.runtime.net.contract.writing import LARGE, SOON, NumberedRule, filled, numbering, other, pair

RULES: dict[str, NumberedRule] = {}
"""By their names."""

rule = numbering(RULES)


@rule(31)
def what_has_ended_is_right(rank):
    """If the partner gives up, what is waited for here fails, or has what it would have without that."""
    network = pair(rank)
    network.barrier()
    link = network.link(other(rank))
    if rank.number == 0:
        started = [link.send(filled(3, LARGE), STATE), network.all.start_sum(filled(1))]
        network.unblock()
        rank.say("gave up")
        rank.hear("through", 1)
        del started
        return
    rank.hear("gave up", 0)
    received, total = filled(0, LARGE), filled(1)
    threading.Timer(0.5, network.unblock).start()
    for start, tensor, expected in [
        (lambda: link.receive(received, STATE), received, filled(3, LARGE)),
        (lambda: network.all.start_sum(total), total, filled(2)),
    ]:
        with suppress(ViewBroken):
            start().wait()
            assert not network.ends_are_right or torch.equal(tensor, expected)
    rank.say("through")


@rule(32)
def what_precedes_has_come(rank):
    """What a thread computes next, it computes with what was received."""
    network = pair(rank)
    network.barrier()
    link = network.link(other(rank))
    if rank.number == 0:
        received = torch.zeros(LARGE)
        transfer = link.receive(received, STATE)
        rank.say("started")
        waited = transfer.precede()
        computed = received * 2
        if not waited:
            transfer.wait()
        assert torch.equal(computed, filled(6, LARGE))
    else:
        rank.hear("started", 0)
        time.sleep(SOON.total_seconds())
        link.send(filled(3, LARGE), STATE).wait()


def _precede_and_wait(network, rank):
    transfer = network.link(other(rank)).receive(torch.zeros(4), STATE)
    transfer.precede()
    transfer.wait()


RULES["what_precedes_is_given_up"] = NumberedRule(33, frees(_precede_and_wait), 2)
