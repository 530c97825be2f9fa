"""The training data of other pipelines, read as their own ranks read it."""

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from recycle.megatron.flag.world.progress import VERSIONS
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

    Of micro-batches that are skipped between others at most the indices are drawn, and their samples are never read.

    Args:
        loader: this rank's own, not yet read from; its sampler knows its pipeline as ``data_parallel_rank``.
        pipelines: that Megatron has.
        first: the step for which the loader's first micro-batches are.
        repeats: whether the data starts over when it is at its end.
        home: which of Megatron's pipelines this rank reads for where it is in a server of a pipeline of the plan.
    """

    def __init__(
        self, loader: DataLoader[Any], pipelines: int, first: int, repeats: bool, home: Callable[[int], int] = int
    ) -> None:
        if not hasattr(loader.batch_sampler, "data_parallel_rank"):
            raise RunError(
                f"data: {type(loader.batch_sampler).__name__} does not say which pipeline it draws for "
                "(data_parallel_rank), so the data of others cannot be found; use --dataloader-type single or cyclic"
            )
        self._dataset = loader.dataset
        self._collate = loader.collate_fn
        self._pipelines = pipelines
        self._repeats = repeats
        self._home = home
        self._own_sampler: Any = loader.batch_sampler
        # The loader's own goes on counting while it is read from.
        self._sampler: Any = copy.copy(loader.batch_sampler)
        # Of the last three steps, and how many samples were taken before the next one.
        self._consumed = {first: _taken_before(loader.batch_sampler)}
        self._numbers: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._indices: dict[int, dict[int, list[list[int]]]] = {}
        self._samplers: dict[int, Iterator[list[int]]] = {}

    def begin(self, step: int, micro_batches: int, consumed: int) -> None:
        """A step begins; steps come in order, the last one again, and some may be left out.

        Args:
            step: its number.
            micro_batches: that each pipeline takes in it.
            consumed: samples that all pipelines together have taken before it.
        """
        batch = self._pipelines * micro_batches * int(self._sampler.micro_batch_size)
        self._consumed |= {step: consumed, step + 1: consumed + batch}
        self._numbers[step] = micro_batches
        oldest = sorted(self._numbers)[-VERSIONS:][0]
        known: list[dict[int, Any]] = [self._consumed, self._numbers, *self._indices.values()]
        for each in known:
            _forget(each, oldest)

    def __call__(self, micro_batch: MicroBatch) -> Any:
        """The samples of a micro-batch of the step that has begun or the two before, as its loader would give them."""
        home, step = micro_batch.home, micro_batch.step
        drawn = self._indices.setdefault(home, {})
        if step not in drawn:
            if self._next.get(home) != step:
                self._samplers[home] = self._draw(home, step)
            drawn[step] = list(islice(self._samplers[home], self._numbers[step]))
            self._next[home] = step + 1
        # A data set may seed the generators that dropout draws from.
        with torch.random.fork_rng(devices=[]):
            return self._collate([self._dataset[each] for each in drawn[step][micro_batch.number]])

    def consumed(self, step: int) -> int:
        """How many samples all pipelines together have taken before a step that has begun, or is the next one."""
        return self._consumed[step]

    def start_at(self, step: int, consumed: int) -> None:
        """Have the loader, which was not read from yet, and this begin with a step.

        Args:
            step: which.
            consumed: how many samples were taken before it.
        """
        self._consumed = {step: consumed}
        self._numbers.clear()
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


def _taken_before(sampler: Any) -> int:
    """How many samples all pipelines have taken before the first that a sampler gives."""
    return int(sampler.consumed_samples)


def _forget(known: dict[int, Any], first: int) -> None:
    """Forget what belongs to steps before some step."""
    for step in [each for each in known if each < first]:
        del known[step]
