"""What the loss functions reported of a whole batch, known to every server of the last stage.

So nothing that the training code prints is lost with the server that computed it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from recycle.job import Job, Server
from recycle.megatron.flag.world.call_results import Value
from recycle.megatron.shared.torch_calls import Carrier
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.net.network import Network, Reduction


class LossTable:
    """The reports of one batch after the other, on a server of the last stage.

    Args:
        server: which server this is.
        job: for its shape.
        ranks: of the server, over whose pipelines the training code sums as well; None where it has one pipeline.
        means: whether evaluations take the mean of each server's reports, as with ``--sft``.

    Attributes:
        rows: the reports that belong to this server, as a stock schedule returns them: those of its own pipeline's
            micro-batches. The first live server also has those of pipelines whose last server is dead.
        totals: what the training code is about to sum over the stage, by what it will put in here: reports of two
            numbers. More than one sum can begin with the same; they are in the order of their names.
        results: of the last table: it, and those sums by name; empty before the first.
    """

    def __init__(self, server: Server, job: Job, ranks: Carrier | None = None, means: bool = False) -> None:
        self.rows: list[dict[str, torch.Tensor]] = []
        self.totals: dict[Value, list[torch.Tensor]] = {}
        self.results: list[torch.Tensor] = []
        self._server = server
        self._job = job
        self._ranks = ranks
        self._adds = (_sum, _mean) if means else (_sum,)
        self._like: dict[str, torch.Tensor] = {}
        self._totals: list[torch.Tensor] = []
        self._sums: list[Reduction] = []

    def exchange(self, network: Network, reported: Mapping[MicroBatch, Mapping[str, Any]], micro_batches: int) -> None:
        """Put what was reported here together with what was reported elsewhere; all peers come here.

        Args:
            network: of the view.
            reported: here.
            micro_batches: how many of each pipeline the batch has.

        Raises:
            ViewBroken: a peer is gone.
        """
        self.start(network, reported, micro_batches)
        self.start_totals()
        self.finish()

    def start(self, network: Network, reported: Mapping[MicroBatch, Mapping[str, Any]], micro_batches: int) -> None:
        """Begin to exchange, for a server that has something else to do meanwhile; see ``exchange``."""
        if reported:
            self._like = dict(next(iter(reported.values())))
        assert self._like, "this server has not seen a loss yet"
        width = sum(each.numel() for each in self._like.values())
        table = torch.zeros(self._job.pipelines, micro_batches, width, dtype=torch.float64)
        if reported:
            parts = [values[name].detach().reshape(-1).double() for values in reported.values() for name in self._like]
            homes, numbers = zip(*((each.home, each.number) for each in reported), strict=True)
            # All at once, because on a GPU each copy costs a wait.
            table[list(homes), list(numbers)] = torch.cat(parts).cpu().reshape(-1, width)
        self._under_way = network.view.peers(self._server.stage), network, table, network.peers.start_sum(table)

    def start_totals(self) -> None:
        """Wait for the reports, and begin to sum those of the stage.

        Raises:
            ViewBroken: a peer is gone.
        """
        peers, network, table, exchange = self._under_way
        exchange.wait()
        columns, all_live = self._columns(table), len(peers) == self._job.pipelines
        homes = [self._server.pipeline] if all_live else range(self._job.pipelines)
        parts = [self._put_in(columns, [home]) for home in homes]
        self._totals = [torch.stack(each).sum(dim=0) for each in zip(*parts, strict=True)]
        # As Megatron's own group adds up, to the bit.
        self._sums = [network.peers.start_sum(each) for each in self._totals] if all_live else []

    def finish(self) -> None:
        """Wait for the sums.

        Raises:
            ViewBroken: a peer is gone.
        """
        peers, _, table, _ = self._under_way
        for each in self._sums:
            each.wait()
        if self._ranks is not None:
            self._totals = [self._ranks.reduce(each, ReduceOp.SUM) for each in self._totals]
        self.take(peers, [table, *self._totals])

    def take(self, peers: tuple[Server, ...], results: Sequence[torch.Tensor]) -> None:
        """Have the reports of a batch that are known already.

        Args:
            peers: the live servers of the stage.
            results: of a table that was exchanged.
        """
        assert self._like, "this server has not seen a loss yet"
        table, *totals = self.results = [*results]
        columns, homes = self._columns(table), _homes(self._server, peers, self._job)
        self.rows = [
            {name: column[home, number] for name, column in columns.items()}
            for home in homes
            for number in range(table.size(1))
        ]
        self.totals = {}
        for mine, total in zip(self._put_in(columns, homes), totals, strict=True):
            self.totals.setdefault(Value.of(mine), []).append(total)

    def _put_in(self, columns: Mapping[str, torch.Tensor], homes: Sequence[int]) -> list[torch.Tensor]:
        """What Megatron's training code puts into its sums over the stage, from some pipelines' reports."""
        pairs = [each[homes].reshape(-1, 2) for each in columns.values() if each[0, 0].numel() == 2]
        return [add(each) for each in pairs for add in self._adds]

    def _columns(self, table: torch.Tensor) -> dict[str, torch.Tensor]:
        """What was reported, by name: of each pipeline and micro-batch, where and as the loss function has it."""
        widths = [each.numel() for each in self._like.values()]
        return {
            name: column.to(like.device).to(like.dtype).reshape(*table.shape[:2], *like.shape)
            for column, (name, like) in zip(torch.split(table, widths, dim=2), self._like.items(), strict=True)
        }


def _homes(server: Server, peers: tuple[Server, ...], job: Job) -> list[int]:
    """The pipelines whose reports a server has: its own, and for the first one those without a live server."""
    alive = {each.pipeline for each in peers}
    orphans = [home for home in range(job.pipelines) if home not in alive] if server == peers[0] else []
    return [server.pipeline, *orphans]


def _sum(rows: torch.Tensor) -> torch.Tensor:
    return rows.sum(dim=0)


def _mean(rows: torch.Tensor) -> torch.Tensor:
    return (rows[:, 0] / rows[:, 1].clamp(min=1)).mean()
