"""The number of tokens in the whole batch, by which a loss of tokens is divided."""

from collections.abc import Callable, Sequence

import torch

from recycle.job import Server
from recycle.runtime.net.network import Group, Network, Transfer
from recycle.runtime.net.transfer_key import TOKENS


class TokenTotal:
    """Adds up what the servers that hold the last stage count, and tells all others.

    Nobody waits for those that are told: stages that step on their own still do so. At both ends of a link, a total
    comes after all transfers of its iteration, because it is part of the reduction, which follows all micro-batches.

    Args:
        network: of the server.
        counters: the live servers that hold the last stage.
        group: of them; nobody else needs it.
        take: what was counted here in this iteration; asked on these servers only.
    """

    def __init__(
        self, network: Network, counters: Sequence[Server], group: Group | None, take: Callable[[], int]
    ) -> None:
        me = network.server
        reporters = {
            each: counters[each.pipeline % len(counters)] for each in network.view.servers if each not in counters
        }
        # Their ends meet in the store, which may be lost when the first total is told.
        self._reporter = network.link(reporters[me]) if me in reporters else None
        self._listeners = [network.link(each) for each, reporter in reporters.items() if reporter == me]
        self._group = group
        self._take = take
        self._told: list[tuple[torch.Tensor, Transfer]] = []

    def __call__(self) -> int:
        """The total of the iteration; every server asks once in each."""
        total = torch.zeros(1, dtype=torch.int64)
        if self._reporter is not None:
            self._reporter.receive(total, TOKENS).wait()
            return int(total)
        assert self._group is not None, "those that count are a group"
        total += self._take()
        self._group.sum(total)
        while self._told:
            self._told.pop()[1].wait()
        self._told = [(total, each.send(total, TOKENS)) for each in self._listeners]
        return int(total)
