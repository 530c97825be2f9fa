"""The same training script with context parallelism, which Megatron has with layers of Transformer Engine only.

Each rank attends with its part of the sequence to all keys and values, which go round in a ring as they do there: from
rank to rank, by sends and receives in the group. Accidents happen as in accident_prone_gpt.py.
"""

import runpy
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.utils import get_batch_on_this_cp_rank
from megatron.training import utils
from torch import distributed as dist


def pass_on(tensor: torch.Tensor, to: int, source: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Send a tensor to one rank of the group while one comes from another."""
    received = torch.empty_like(tensor)
    works = [
        dist.isend(tensor, dist.get_global_rank(group, to), group),
        dist.irecv(received, dist.get_global_rank(group, source), group),
    ]
    for each in works:
        assert each is not None
        each.wait()
    return received


class Ring(torch.autograd.Function):
    """The parts of all ranks, in their order."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        context.group, rank, size = group, group.rank(), group.size()
        parts = {rank: tensor.contiguous()}
        for step in range(1, size):
            before = parts[(rank - step + 1) % size]
            parts[(rank - step) % size] = pass_on(before, (rank + 1) % size, (rank - 1) % size, group)
        return torch.stack([parts[each] for each in range(size)])

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        group, rank, size = context.group, context.group.rank(), context.group.size()
        total = gradient[rank].clone()
        for step in range(1, size):
            to, source = (rank + step) % size, (rank - step) % size
            total += pass_on(gradient[to].contiguous(), to, source, group)
        return total, None


class RingAttention(DotProductAttention):  # type: ignore[misc]
    """Attention of a part of the sequence to all of it."""

    def __init__(self, config: Any, *arguments: Any, **keywords: Any) -> None:
        # It refuses a part of a sequence, because it would attend to nothing else.
        parts, config.context_parallel_size = config.context_parallel_size, 1
        super().__init__(config, *arguments, **keywords)
        config.context_parallel_size = parts

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *arguments: Any, **keywords: Any
    ) -> Any:
        group = parallel_state.get_context_parallel_group()
        found = Ring.apply(torch.stack([key, value]), group)  # type: ignore[no-untyped-call]
        # Each rank has a chunk of the first half and its counterpart in the second one.
        chunks = found.unflatten(2, (2, len(key) // 2))
        ordered = torch.cat([chunks[:, :, 0], chunks[:, :, 1].flip(0)]).transpose(0, 1).flatten(1, 2)
        return super().forward(query, *ordered, *arguments, **keywords)


def of_this_part(get_batch: Callable[[Iterator[Any]], Any]) -> Callable[[Iterator[Any]], Any]:
    @wraps(get_batch)
    def get_batch_on_this_tp_rank(iterator: Iterator[Any]) -> Any:
        return get_batch_on_this_cp_rank(get_batch(iterator))

    return get_batch_on_this_tp_rank


if __name__ == "__main__":
    LocalSpecProvider.core_attention = lambda self: RingAttention
    utils.get_batch_on_this_tp_rank = of_this_part(utils.get_batch_on_this_tp_rank)
    runpy.run_path(str(Path(__file__).with_name("accident_prone_gpt.py")), run_name="__main__")
