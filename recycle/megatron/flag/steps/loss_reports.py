"""What loss functions reported goes home: training code expects that of its own pipeline's micro-batches."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from recycle.runtime.execute.stage import MicroBatch


def exchange_reports(
    results: Mapping[MicroBatch, Any], group: dist.ProcessGroup, pipelines: int = 1
) -> list[dict[str, torch.Tensor]]:
    """Give what was reported here to the homes of the micro-batches, and take what is for this pipeline.

    Args:
        results: what the loss function gave, by micro-batch.
        group: all servers of the last stage, by pipeline; each of them comes here.
        pipelines: that go through each server; its ranks in the group are neighbours.

    Returns:
        The reports of the micro-batches of this server's pipeline, in their order.
    """
    mine = group.rank()
    # A server has computed for the same one of the pipelines through another.
    computed = {
        (each.home * pipelines + mine % pipelines, each.number): {
            name: (value.device.type, value.detach().cpu().clone()) for name, value in values.items()
        }
        for each, values in results.items()
    }
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, computed, group=group)
    reports = {number: values for each in found for (home, number), values in each.items() if home == mine}
    return [{name: value.to(device) for name, (device, value) in reports[number].items()} for number in sorted(reports)]
