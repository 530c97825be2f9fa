"""The training data of other pipelines, read as their own ranks read it."""

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from recycle.runtime.errors import RunError
from recycle.runtime.execute.stage import MicroBatch


class LateLoader:
    """A loader that is not read from before somebody asks for its first item: until then its place may change.

    Args:
        loader: whose items it gives.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self._loader

    def __len__(self) -> int:
        return len(self._loader)


class OtherData:
    """Any pipeline's micro-batches of this stage's data set, by their numbers.

    Of micro-batches that are skipped between others only the indices are drawn, and their samples are never read.

    Args:
        loader: this rank's own, not yet read from; its sampler knows its pipeline as ``data_parallel_rank``.
        pipelines: that Megatron has.
        micro_batches: M.
        first: the step for which the loader's first micro-batches are.
        repeats: whether the data starts over when it is at its end.
        home: which of Megatron's pipelines this rank reads for where it is in a server of a pipeline of the plan.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        pipelines: int,
        micro_batches: int,
        first: int,
        repeats: bool,
        home: Callable[[int], int] = int,
    ) -> None:
        if not hasattr(loader.batch_sampler, "data_parallel_rank"):
            raise RunError(
                f"data: {type(loader.batch_sampler).__name__} does not say which pipeline it draws for "
                "(data_parallel_rank), so the data of others cannot be found; use --dataloader-type single or cyclic"
            )
        self._dataset = loader.dataset
        self._collate = loader.collate_fn
        self._micro_batches = micro_batches
        self._pipelines = pipelines
        self._first = first
        self._repeats = repeats
        self._home = home
        self._own_sampler: Any = loader.batch_sampler
        # The loader's own goes on counting while it is read from.
        self._sampler: Any = copy.copy(loader.batch_sampler)
        self._next: dict[int, int] = {}
        self._indices: dict[int, dict[int, list[list[int]]]] = {}
        self._samplers: dict[int, Iterator[list[int]]] = {}

    def __call__(self, micro_batch: MicroBatch) -> Any:
        """The samples of a micro-batch, as its loader would give them; steps come in order, and the last two again."""
        home = micro_batch.home
        if home not in self._samplers:
            self._samplers[home] = self._draw(home, micro_batch.step)
            self._next[home] = micro_batch.step
            self._indices[home] = {}
        drawn = self._indices[home]
        while self._next[home] <= micro_batch.step:
            drawn.pop(self._next[home] - 2, None)
            drawn[self._next[home]] = list(islice(self._samplers[home], self._micro_batches))
            self._next[home] += 1
        assert micro_batch.step in drawn, f"step {micro_batch.step} is over, or was never drawn"
        # A data set may seed the generators that dropout draws from.
        with torch.random.fork_rng(devices=[]):
            return self._collate([self._dataset[each] for each in drawn[micro_batch.step][micro_batch.number]])

    def consumed(self, step: int) -> int:
        """How many samples all pipelines together have taken before a step."""
        batch = self._pipelines * self._micro_batches * self._sampler.micro_batch_size
        return int(self._sampler.consumed_samples) + (step - self._first) * int(batch)

    def start_at(self, step: int, consumed: int) -> None:
        """Have the loader, which was not read from yet, and this begin with a step.

        Args:
            step: which.
            consumed: how many samples were taken before it.
        """
        self._first = step
        for sampler in (self._own_sampler, self._sampler):
            sampler.consumed_samples = consumed

    def _draw(self, home: int, step: int) -> Iterator[list[int]]:
        """The indices of a pipeline's micro-batches, from a step on."""
        sampler = copy.copy(self._sampler)
        sampler.data_parallel_rank = self._home(home)
        sampler.consumed_samples = self.consumed(step)
        yield from sampler
        while self._repeats:
            yield from sampler
