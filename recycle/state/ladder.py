"""Versions in memory, and the ladder: what keepers keep of each, and what is taken after a failure, without I/O.

Version i of a stage is what i optimizer steps have made of it. The live peers of a stage copy a part of it each, so a
version can be had where all parts of it are, made in the same view: parts of two views may differ in rounding, and
parts of two versions are never put together.

What is kept follows from what trainers do: each has put its part of version i with the keepers before it lets its
peers reduce the gradients of iteration i, and that of the first version of a view before it begins to work. So while
anybody begins to put version i, all parts of version i - 2 are there for every stage, and in the second version of a
view, all parts of its first.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

BEHIND = 2
"""How many versions before the one that is being put are kept."""

MOST = BEHIND + 2
"""How many versions of a stage are kept at most: while a view begins, its first version is there twice."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class StatePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """A part of a version of a stage's state.

    Attributes:
        stage: whose.
        epoch: of the view in which it was copied.
        version: which.
        number: which part it is, from 0.
        parts: how many the version was cut into.
    """

    stage: Count
    epoch: Count
    version: Count
    number: Count
    parts: Annotated[int, msgspec.Meta(ge=1, le=2**31)]

    def __str__(self) -> str:
        return f"part {self.number + 1} of {self.parts} of version {self.version} of stage {self.stage}"


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


def find_outdated(held: Collection[StatePart], coming: StatePart) -> frozenset[StatePart]:
    """Which parts nobody can need any more when another one of their stage begins to come.

    Args:
        held: what a keeper has, of every version all or nothing of what there will ever be in a view that is over.
        coming: what is put there next.
    """
    mine = [each for each in held if each.stage == coming.stage]
    settled = any(each.epoch == coming.epoch and each.version < coming.version for each in mine)
    earlier = [] if settled else [each for each in mine if each.epoch < coming.epoch]
    whole = find_whole(Copy(each, "", 0) for each in earlier).get(coming.stage, {})
    # What a view does not begin with, nor before, is made again in it; and nobody makes the rest of what is not whole.
    needed = {each for version, parts in whole.items() if version <= coming.version for each in parts}
    needed.update(each for each in mine if each.epoch >= coming.epoch)
    return frozenset(each for each in mine if each not in needed or each.version < coming.version - BEHIND)


def find_whole(copies: Iterable[Copy]) -> Mapping[int, Mapping[int, tuple[StatePart, ...]]]:
    """The versions of which every part is held somewhere, by stage: their parts in order, of one view.

    Where several views have copied a version, it is that of the newest one.

    Args:
        copies: what all keepers have that can be reached.
    """
    sets: dict[tuple[int, int, int, int], set[StatePart]] = defaultdict(set)
    for part in {each.part for each in copies}:
        sets[part.epoch, part.stage, part.version, part.parts].add(part)
    whole: dict[int, dict[int, tuple[StatePart, ...]]] = {}
    for (_, stage, version, parts), found in sorted(sets.items()):
        if {each.number for each in found} == set(range(parts)):
            whole.setdefault(stage, {})[version] = tuple(sorted(found))
    return whole


def climb(copies: Iterable[Copy], part: StatePart, near: str) -> Sequence[Copy]:
    """Where to look for a part, rung by rung: one's own host's keeper, and then the others.

    Args:
        copies: what all keepers have that can be reached.
        part: which.
        near: the keeper of one's own host.
    """
    holding = [each for each in copies if each.part == part]
    return sorted(holding, key=lambda each: (each.keeper != near, each.keeper))
