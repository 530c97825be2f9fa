"""The training script's data by micro-batch, on a server that may be given micro-batches of other pipelines."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

from recycle.megatron.flag.data.other_data import OtherData
from recycle.megatron.flag.world.progress import VERSIONS
from recycle.runtime.errors import RunError
from recycle.runtime.execute.stage import MicroBatch


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
