"""The rule of what is asked for after a network was made."""

import threading
import time
from datetime import timedelta

from tests.runtime.net.contract.ranks import SERVERS
from tests.runtime.net.contract.writing import NumberedRule, numbering, other, pair

RULES: dict[str, NumberedRule] = {}
"""By their names."""

rule = numbering(RULES)


@rule(40)
def others_may_come_later_than_to_connect(rank):
    """A group and a link are waited for as long as a transfer: others may have state to read or to copy first."""
    began = time.monotonic()
    pair(rank).barrier()
    # A busy machine takes longer, and twenty times as long is more than it is late once.
    patience = max(0.5, 20 * (time.monotonic() - began))
    asks = [lambda network: network.group("late", SERVERS[:2]), lambda network: network.link(other(rank))]
    for epoch, ask in enumerate(asks, 1):
        network = pair(rank, epoch, rebuild=timedelta(seconds=patience), partners=[])
        network.barrier()
        waited = f"waited {epoch}"
        if rank.number == 0:
            threading.Timer(patience + 0.2, lambda word: rank.say(word), [waited]).start()
        else:
            rank.hear(waited, 0)
        ask(network)
        network.barrier()
