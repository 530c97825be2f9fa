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
        self._network = network
        self._counters = counters
        self._group = group
        self._take = take
        self._told: list[tuple[torch.Tensor, Transfer]] = []

    def __call__(self) -> int:
        """The total of the iteration; every server asks once in each."""
        total = torch.zeros(1, dtype=torch.int64)
        if self._group is None:
            self._network.link(self._reporter(self._network.server)).receive(total, TOKENS).wait()
            return int(total)
        total += self._take()
        self._group.sum(total)
        while self._told:
            self._told.pop()[1].wait()
        for server in self._network.view.servers:
            if server not in self._counters and self._reporter(server) == self._network.server:
                self._told.append((total, self._network.link(server).send(total, TOKENS)))
        return int(total)

    def _reporter(self, server: Server) -> Server:
        return self._counters[server.pipeline % len(self._counters)]
