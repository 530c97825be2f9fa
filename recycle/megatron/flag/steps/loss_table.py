"""What the loss functions reported of a whole batch, known to every server of the last stage.

So nothing that the training code prints is lost with the server that computed it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from recycle.job import Job, Server
from recycle.megatron.flag.world.call_results import content_of
from recycle.megatron.shared.torch_calls import Carrier
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.net.network import Network


class LossTable:
    """The reports of one batch after the other, on a server of the last stage.

    Args:
        server: which server this is.
        job: for its shape.
        ranks: of the server, over whose pipelines the training code sums as well; None where it has one pipeline.

    Attributes:
        rows: the reports that belong to this server, as a stock schedule returns them: those of its own pipeline's
            micro-batches. The first live server also has those of pipelines whose last server is dead.
        totals: what the training code is about to sum over the stage, by what it will put in here, in bytes. More than
            one sum can begin with the same; they are in the order of their names.
        results: of the last table: it, and those sums by name; empty before the first.
    """

    def __init__(self, server: Server, job: Job, ranks: Carrier | None = None) -> None:
        self.rows: list[dict[str, torch.Tensor]] = []
        self.totals: dict[bytes, list[torch.Tensor]] = {}
        self.results: list[torch.Tensor] = []
        self._server = server
        self._job = job
        self._ranks = ranks
        self._like: dict[str, torch.Tensor] = {}

    def exchange(self, network: Network, reported: Mapping[MicroBatch, Mapping[str, Any]], micro_batches: int) -> None:
        """Put what was reported here together with what was reported elsewhere; all peers come here.

        Args:
            network: of the view.
            reported: here.
            micro_batches: how many of each pipeline the batch has.

        Raises:
            ViewBroken: somebody is gone.
        """
        if reported:
            self._like = dict(next(iter(reported.values())))
        assert self._like, "this server has not seen a loss yet"
        peers = network.view.peers(self._server.stage)
        width = sum(each.numel() for each in self._like.values())
        table = torch.zeros(self._job.pipelines, micro_batches, width, dtype=torch.float64)
        for micro_batch, values in reported.items():
            parts = [values[name].detach().cpu().reshape(-1).double() for name in self._like]
            table[micro_batch.home, micro_batch.number] = torch.cat(parts)
        network.peers.sum(table)
        rows = {server: self._rows(server, peers, table) for server in peers}
        totals = []
        for name in self._like:
            sums = {server: _sum(each[name] for each in rows[server]) for server in peers}
            total = sums[self._server].clone()
            if len(peers) == self._job.pipelines:
                # As Megatron's own group adds up, to the bit.
                network.peers.sum(total)
            else:
                total = _sum(sums.values())
            if self._ranks is not None:
                total = self._ranks.reduce(total, ReduceOp.SUM)
            totals.append(total)
        self.take(peers, [table, *totals])

    def take(self, peers: tuple[Server, ...], results: Sequence[torch.Tensor]) -> None:
        """Have the reports of a batch that are known already.

        Args:
            peers: the live servers of the stage.
            results: of a table that was exchanged.
        """
        assert self._like, "this server has not seen a loss yet"
        table, *totals = self.results = [*results]
        self.rows = self._rows(self._server, peers, table)
        self.totals = {}
        for name, total in zip(self._like, totals, strict=True):
            mine = _sum(each[name] for each in self.rows)
            self.totals.setdefault(content_of(mine), []).append(total)

    def _rows(self, server: Server, peers: tuple[Server, ...], table: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        # All at once, because on a GPU each copy costs a wait.
        widths = [each.numel() for each in self._like.values()]
        columns = {
            name: column.to(like.device).to(like.dtype).reshape(*table.shape[:2], *like.shape)
            for column, (name, like) in zip(torch.split(table, widths, dim=2), self._like.items(), strict=True)
        }
        return [
            {name: column[home, number] for name, column in columns.items()}
            for home in _homes(server, peers, self._job)
            for number in range(table.size(1))
        ]


def _homes(server: Server, peers: tuple[Server, ...], job: Job) -> list[int]:
    """The pipelines whose reports a server has: its own, and for the first one those without a live server."""
    alive = {each.pipeline for each in peers}
    orphans = [home for home in range(job.pipelines) if home not in alive] if server == peers[0] else []
    return [server.pipeline, *orphans]


def _sum(values: Any) -> torch.Tensor:
    """As Megatron's training code adds them up."""
    return torch.vstack([each.view(-1) for each in values]).sum(dim=0)
