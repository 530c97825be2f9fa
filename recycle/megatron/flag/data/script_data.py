"""The training script's data by micro-batch, on a server that may be given micro-batches of other pipelines.

Those are read as the other pipelines' own ranks read them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import islice
from typing import Any, NamedTuple

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
        self._sampler: Any = copy(loader.batch_sampler)
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
        sampler = copy(self._sampler)
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


class Bookmark(NamedTuple):
    """How far an iterator has been read: so many batches, which with those before the start are so many samples."""

    batches: int
    samples: int


class Feed:
    """An iterator of the training script's, and the data that it is a part of.

    Args:
        iterator: gives one pipeline's data, in the order of its micro-batches; None where a stage reads none.
        other: gives that of other pipelines; None if it cannot be found.

    Attributes:
        trains: whether the training code trains on it; each virtual stage has such an iterator.
        evaluations: how many batches were taken from it to evaluate the model.
    """

    def __init__(self, iterator: Iterator[Any] | None, other: OtherData | None = None, trains: bool = False) -> None:
        self.iterator = iterator
        self.other = other
        self.trains = trains
        self.evaluations = 0


class ScriptData:
    """What a stage's forward steps read: items of the script's own iterators, or other pipelines' data; it is Data.

    Stages may execute micro-batches in different orders, and still mean the same by a number: so the own ones are read
    in their order, and kept until nobody can ask for them again.

    Args:
        home: the pipeline whose data the script's iterators give.
        samples: gives the number of those that the training code has taken to train on, also in iterations that it
            left out.
    """

    def __init__(self, home: int, samples: Callable[[], int]) -> None:
        self._home = home
        self._samples = samples
        # By how much that differs from where the iterators are.
        self._ahead = 0
        self._feeds: dict[int, Feed] = {}
        self._trained = self._evaluated = Feed(None)
        self._items: dict[int, list[Any]] = {}
        self._held_out: list[Any] = []

    def add(self, iterator: Iterator[Any] | None, other: OtherData, first: int | None = None) -> None:
        """Say where the data of other pipelines is that belongs to an iterator of this one's.

        Args:
            iterator: it.
            other: where that is.
            first: the step whose data it gives first; None where the training code does not train on it.
        """
        if iterator is not None:
            if first is not None:
                self._ahead = other.consumed(first) - self._samples()
            # The feed keeps the iterator, so that no other object is taken for it.
            self._feeds[id(iterator)] = Feed(iterator, other, first is not None)

    @contextmanager
    def iteration(self, iterator: Iterator[Any] | None, step: int, micro_batches: int) -> Iterator[None]:
        """Within the block, an iteration trains on what an iterator gives; that of the two before it is kept.

        The iterator is left where a stock schedule leaves it.

        Args:
            iterator: the script's.
            step: the iteration.
            micro_batches: how many each pipeline has in it.
        """
        self._trained = feed = self._feed_of(iterator)
        if feed.other is not None:
            feed.other.begin(step, micro_batches, self._samples() + self._ahead)
        # Numbers of iterations may be left out.
        others = sorted(each for each in self._items if each != step)
        self._items = {each: self._items[each] for each in others[1 - VERSIONS :]} | {step: []}
        yield
        _read(feed, self._items[step], micro_batches)

    @contextmanager
    def evaluation(self, iterator: Iterator[Any] | None, micro_batches: int) -> Iterator[None]:
        """The same for an evaluation, whose data nobody asks for again."""
        self._evaluated = feed = self._feed_of(iterator)
        if feed.other is not None:
            feed.other.begin(feed.evaluations, micro_batches, feed.other.consumed(feed.evaluations))
        self._held_out = []
        yield
        _read(feed, self._held_out, micro_batches)
        self._held_out = []
        feed.evaluations += 1

    def bookmarks(self, step: int) -> list[Bookmark]:
        """How far each of the iterators was read before the batch of an iteration, in which this is."""
        trained = Bookmark(step, self._samples() + self._ahead)
        return [
            trained if feed.trains else Bookmark(feed.evaluations, feed.other.consumed(feed.evaluations))
            for feed in self._feeds.values()
            if feed.other
        ]

    def open_at(self, bookmarks: Sequence[Bookmark]) -> None:
        """Go on from there with all iterators, none of which was read from yet."""
        for feed, (batches, samples) in zip(self._feeds.values(), bookmarks, strict=True):
            assert feed.other is not None, "an iterator was added without its data"
            feed.evaluations = batches
            if feed.trains:
                self._ahead = samples - self._samples()
            feed.other.start_at(batches, samples)

    def training(self, micro_batch: MicroBatch) -> Iterator[Any] | None:
        """See Data."""
        return self._find(self._trained, self._items[micro_batch.step], micro_batch)

    def held_out(self, micro_batch: MicroBatch) -> Iterator[Any] | None:
        """See Data."""
        return self._find(self._evaluated, self._held_out, micro_batch._replace(step=self._evaluated.evaluations))

    def _feed_of(self, iterator: Iterator[Any] | None) -> Feed:
        return self._feeds.get(id(iterator)) or Feed(iterator)

    def _find(self, feed: Feed, own: list[Any], micro_batch: MicroBatch) -> Iterator[Any] | None:
        if feed.iterator is None:
            return None
        if micro_batch.home == self._home:
            _read(feed, own, micro_batch.number + 1)
            # Scripts change it in place, and may ask for it again.
            return iter([copy(own[micro_batch.number])])
        if feed.other is None:
            raise RunError("data: the plan routes micro-batches of other pipelines here, whose data cannot be found")
        return iter([feed.other(micro_batch)])


def _read(feed: Feed, items: list[Any], number: int) -> None:
    """Read until there are so many items; nothing where nothing is read."""
    while feed.iterator is not None and len(items) < number:
        items.append(next(feed.iterator))
