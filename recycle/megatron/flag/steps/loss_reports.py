"""What loss functions reported goes home: training code expects that of its own pipeline's micro-batches."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from recycle.runtime.execute.stage import MicroBatch


class LossReport(NamedTuple):
    """One number or a few that a loss function reported of a micro-batch: a tensor in bytes, and where it lay."""

    home: int
    number: int
    name: str
    dtype: str
    device: str
    shape: tuple[int, ...]
    content: bytes


class LossExchange:
    """Passes reports between the servers of the last stage.

    Args:
        group: the ranks of the last stage, each that of its pipeline.
        pipelines: how many of Megatron's go through a server.
    """

    def __init__(self, group: dist.ProcessGroup, pipelines: int = 1) -> None:
        self._group = group
        self._pipelines = pipelines

    def exchange(self, results: Mapping[MicroBatch, Any]) -> list[dict[str, torch.Tensor]]:
        """Give what was reported here to the homes of the micro-batches, and take what is for this pipeline.

        Args:
            results: what the loss function reported, by micro-batch.

        Returns:
            The reports of this pipeline's micro-batches, by their number, as a stock schedule returns them.
        """
        away = [
            _report(self._rank(each), each.number, name, value)
            for each, values in results.items()
            for name, value in values.items()
            if self._rank(each) != self._group.rank()
        ]
        reports = {
            each.number: dict(values) for each, values in results.items() if self._rank(each) == self._group.rank()
        }
        for report in self._gather(away):
            if report.home == self._group.rank():
                reports.setdefault(report.number, {})[report.name] = _tensor(report)
        return [reports[number] for number in sorted(reports)]

    def _rank(self, micro_batch: MicroBatch) -> int:
        """Whose a micro-batch is that was computed here: of the same one of the pipelines through its server."""
        return micro_batch.home * self._pipelines + self._group.rank() % self._pipelines

    def _gather(self, reports: list[LossReport]) -> list[LossReport]:
        # A group over NCCL carries nothing that lies in host memory.
        device = "cuda" if dist.get_backend(self._group) == "nccl" else "cpu"
        content = torch.frombuffer(bytearray(msgspec.msgpack.encode(reports)), dtype=torch.uint8)
        size = torch.tensor([len(content)], device=device)
        sizes = [torch.zeros_like(size) for _ in range(self._group.size())]
        dist.all_gather(sizes, size, group=self._group)
        longest = max(int(each) for each in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8, device=device)
        padded[: len(content)] = content
        contents = [torch.zeros_like(padded) for _ in sizes]
        dist.all_gather(contents, padded, group=self._group)
        return [
            report
            for each, length in zip(contents, sizes, strict=True)
            for report in msgspec.msgpack.decode(bytes(each[: int(length)].tolist()), type=list[LossReport])
        ]


def _report(home: int, number: int, name: str, value: torch.Tensor) -> LossReport:
    content = bytes(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).tolist())
    return LossReport(home, number, name, str(value.dtype), value.device.type, tuple(value.shape), content)


def _tensor(report: LossReport) -> torch.Tensor:
    dtype = getattr(torch, report.dtype.removeprefix("torch."))
    return torch.frombuffer(bytearray(report.content), dtype=dtype).reshape(report.shape).to(report.device)
