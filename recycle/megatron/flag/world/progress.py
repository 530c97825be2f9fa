"""The two ways in which progress is counted, and what joins them.

A *version* counts how often the state was made anew; views, copies and recovery know versions only. An *iteration* is
numbered by the training code: it chooses data and dropout, and people read it. Megatron leaves iterations out
(``--iterations-to-skip``) and makes one again whose result its rerun engine rejects, so neither follows from the other.
"""

from typing import NamedTuple

VERSIONS = 3
"""Versions from which training may have to go on: the present one, and the two before it, which keepers may have."""


class Asked(NamedTuple):
    """An iteration that the training code has asked for.

    Attributes:
        iteration: its number.
        micro_batches: of each pipeline.
    """

    iteration: int
    micro_batches: int


class IterationProgress:
    """How far one server is.

    Args:
        version: with which training begins.
        iteration: with which it begins.

    Attributes:
        reached: the version that the training code has got to. State may be older for a while: then it catches up.
        repeats: whether the training code makes the last iteration again, which is then no boundary.
    """

    def __init__(self, version: int, iteration: int) -> None:
        self.repeats = False
        self._asked: dict[int, Asked] = {}
        self.arrive(version, iteration)

    def arrive(self, version: int, iteration: int) -> None:
        """Go on before an iteration with a version that a peer or a keeper had."""
        self.reached = version
        self._last = version, iteration
        self._asked.clear()

    @property
    def is_asked(self) -> bool:
        """Whether the training code has asked for an iteration here."""
        return bool(self._asked)

    def ask(self, iteration: int, micro_batches: int) -> None:
        """The training code asks for an iteration, which leads to the next version."""
        asked = Asked(iteration, micro_batches)
        self.repeats = any(each.iteration == iteration for each in self._asked.values())
        self._last = self.reached, iteration
        self._asked[self.reached] = asked
        for version in sorted(self._asked)[:-VERSIONS]:
            del self._asked[version]

    def answer(self) -> None:
        """The iteration that was asked for last is made."""
        self.reached += 1

    def after(self, version: int) -> Asked:
        """The iteration that leads on from a version; it was asked for."""
        return self._asked[version]

    def is_repeated(self, version: int) -> bool:
        """Whether the iteration that leads on from a version, which was asked for, was asked for once more after it."""
        onward = self._asked.get(version + 1)
        return onward is not None and onward.iteration == self._asked[version].iteration

    def iteration(self, version: int) -> int:
        """The number of the iteration that leads on from a version, for those who read of it.

        What the training code has not asked for yet is expected to come next.
        """
        if version in self._asked:
            return self._asked[version].iteration
        last, iteration = self._last
        return iteration + version - last
