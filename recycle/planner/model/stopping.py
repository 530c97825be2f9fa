"""When a search ends."""

from typing import Protocol

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """How far a search has come.

    Attributes:
        value: the best found so far: period or makespan, in the job's time units.
        bound: what no plan can go below.
        moves: changes tried.
        seconds: processor time spent.
    """

    value: int
    bound: int
    moves: int
    seconds: float


class StoppingCriterion(Protocol):
    """When a search should end. It always ends at the bound."""

    def reached(self, progress: Progress) -> bool:
        """True if the search should end now."""


class MaxSeconds(msgspec.Struct, frozen=True):
    """Stop after a time of the processor's; results then depend on the machine's speed."""

    seconds: float

    def reached(self, progress: Progress) -> bool:
        """True once the time is over."""
        return progress.seconds >= self.seconds


class MaxMoves(msgspec.Struct, frozen=True):
    """Stop after a number of changes: equal seeds give equal results on every machine."""

    moves: int

    def reached(self, progress: Progress) -> bool:
        """True once that many changes were tried."""
        return progress.moves >= self.moves
