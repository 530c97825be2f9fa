"""Versions in memory, and the ladder: what keepers keep of each, and what is taken after a failure, without I/O.

Version i of a stage is what i optimizer steps have made of it. The live peers of a stage copy a part of it each, so a
version can be had where all parts of it are, made in the same view: parts of two views may differ in rounding, and
parts of two versions are never put together. A part is there where enough pieces of it are.

Where servers have several ranks, each rank has a state of its own, of which it puts a part. A version is there where
all ranks' parts of it are, of one view: what ranks hold alike would differ in rounding otherwise.

What is kept follows from what trainers do: each has put its part of version i with the keepers before it lets its
peers reduce the gradients of iteration i, and that of the first version of a view before it begins to work. So while
anybody begins to put version i, all parts of version i - 2 are there for every stage; in the second version of a
view, all parts of its first; and where a view begins with version i, all parts of version i - 1, in the newest view
that has it. A keeper sees some parts only, and follows from that alone what it may forget. Besides, it has the oldest
version that is to be written to disk, until it is told that it was.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Annotated, Self

import msgspec

from recycle.state.redundancy import Pieces

BEHIND = 2
"""How many versions before the one that is being put are kept."""

MOST = 4
"""How many versions of a stage are kept at most: while a view begins, its first version is there up to three times. One
more is, where versions are written to disk."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class StatePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """A part of a version of a stage's state, or a piece of one.

    Attributes:
        stage: whose.
        epoch: of the view in which it was copied.
        version: which.
        number: which part it is, from 0.
        parts: how many the version was cut into, on each rank.
        began: the version with which that view began.
        piece: which piece of the part, from 0; copies are all of piece 0.
        needed: how many pieces are enough to have the part.
        durable: whether the version is to be written to disk.
        rank: of which of a server's ranks.
        ranks: how many servers have.
    """

    stage: Count
    epoch: Count
    version: Count
    number: Count
    parts: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    began: Count = 0
    piece: Annotated[int, msgspec.Meta(ge=0)] = 0
    needed: Pieces = 1
    durable: bool = False
    rank: Count = 0
    ranks: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1

    @property
    def whole(self) -> Self:
        """The part that this is a piece of, which goes by the name of its first piece."""
        return msgspec.structs.replace(self, piece=0)

    @property
    def part(self) -> str:
        """Which part it is, or is of, in words."""
        rank = f" of rank {self.rank}" if self.ranks > 1 else ""
        return f"part {self.number + 1} of {self.parts}{rank} of version {self.version} of stage {self.stage}"

    def __str__(self) -> str:
        return f"piece {self.piece + 1} of {self.part}" if self.needed > 1 else self.part


class Copy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part, as one keeper has it.

    Attributes:
        part: what it is a copy of.
        keeper: who has it.
        size: in bytes.
    """

    part: StatePart
    keeper: str
    size: Annotated[int, msgspec.Meta(ge=0)]


def is_late(held: Iterable[StatePart], coming: StatePart) -> bool:
    """Whether a part is of a view that is over for its stage, so that nobody must keep it."""
    return any(each.stage == coming.stage and each.epoch > coming.epoch for each in held)


def find_outdated(held: Collection[StatePart], coming: StatePart, written: int = 0) -> frozenset[StatePart]:
    """Which parts nobody can need any more when another one begins to come.

    Args:
        held: what a keeper has.
        coming: what is put there next.
        written: versions up to this one need not be written to disk any more.
    """
    undone = {each for each in held if _is_undone(each, coming.epoch, coming.began)}
    mine = [each for each in held if each.stage == coming.stage and each not in undone]
    return frozenset(undone | (_find_superseded(mine, coming) - _find_unwritten(mine, written)))


def _find_unwritten(mine: Iterable[StatePart], written: int) -> set[StatePart]:
    """Of a stage's parts, the oldest version that is to be written to disk, as the newest view has it."""
    waiting = [each for each in mine if each.durable and each.version > written]
    first = min(waiting, key=lambda each: (each.version, -each.epoch), default=None)
    return {each for each in waiting if first and (each.version, each.epoch) == (first.version, first.epoch)}


def _find_superseded(mine: Collection[StatePart], coming: StatePart) -> set[StatePart]:
    """Of a stage's parts, those that no recovery can need any more when another one begins to come."""
    outdated: set[StatePart] = set()
    earlier = [each for each in mine if each.epoch < coming.epoch]
    if coming.version > coming.began:
        outdated.update(earlier)
        outdated.update(each for each in mine if each.version < coming.version - BEHIND)
        return outdated
    # The version before is whole in its newest view. Of the first one itself nobody knows which view's is, if any: the
    # oldest view's is that with which the others began, and of the later ones the newest must do.
    kept: set[tuple[int, int]] = set()
    for version, chosen in ((coming.began - 1, (max,)), (coming.began, (min, max))):
        epochs = [each.epoch for each in earlier if each.version == version]
        kept.update((choose(epochs), version) for choose in chosen if epochs)
    outdated.update(each for each in earlier if (each.epoch, each.version) not in kept)
    return outdated


def find_whole(copies: Iterable[Copy]) -> Mapping[int, Mapping[int, tuple[StatePart, ...]]]:
    """The versions of which every part can be had, by stage: their parts in order, rank by rank, of one view.

    Where several views have copied a version, it is that of the newest one. What was made before a view that began
    with less is none: it was taken back.

    Args:
        copies: what all keepers have that can be reached.
    """
    known = {each.part for each in copies}
    began = {(each.epoch, each.began) for each in known}
    pieces: dict[StatePart, set[int]] = defaultdict(set)
    for each in known:
        pieces[each.whole].add(each.piece)
    sets: dict[tuple[int, int, int, int, int], set[StatePart]] = defaultdict(set)
    for part, found in pieces.items():
        if len(found) >= part.needed and not any(_is_undone(part, *view) for view in began):
            sets[part.epoch, part.stage, part.version, part.parts, part.ranks].add(part)
    whole: dict[int, dict[int, tuple[StatePart, ...]]] = {}
    for (_, stage, version, parts, ranks), there in sorted(sets.items()):
        if {(each.rank, each.number) for each in there} == set(product(range(ranks), range(parts))):
            whole.setdefault(stage, {})[version] = tuple(sorted(there, key=lambda each: (each.rank, each.number)))
    return whole


def _is_undone(part: StatePart, epoch: int, began: int) -> bool:
    """Whether a view that began later, and with less, has taken a version back."""
    return part.epoch < epoch and part.version > began


def climb(copies: Iterable[Copy], part: StatePart, near: str) -> Sequence[Copy]:
    """Where to look for a part or pieces of it, rung by rung: one's own host's keeper, then the others, parity last.

    Args:
        copies: what all keepers have that can be reached.
        part: which.
        near: the keeper of one's own host.
    """
    holding = [each for each in copies if each.part.whole == part.whole]
    return sorted(holding, key=lambda each: (each.keeper != near, each.part.piece, each.keeper))
