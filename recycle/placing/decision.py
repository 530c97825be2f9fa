"""The decision: whether layers move after a change of servers, or training goes on re-routed. Pure.

Training goes on by re-routing at once. Another placement saves time in every iteration once it is there; until then
its layers are copied while training goes on, and when it is applied all stand still. It pays if more iterations are
made that way until servers are expected to change again:

    (until - copying - pause) / then + copying / now > until / now
"""

import math
from typing import Self

import msgspec

from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.wording import memory_text, seconds_text

LAYER_BYTES, BANDWIDTH = 600_000_000, 10e9
"""Of a layer with its moments, and a second into a server that copies layers while training goes on: guesses."""

CLUSTER = 238 * 86_400.0, 5.5 * 86_400.0
"""Seconds between a server's failures and to its repair, of 400 servers over 348 days: 4.2 failures in 1,000 days of a
server, 5.5 days each (InfiniteHBD, SIGCOMM'25)."""


class Outlook(msgspec.Struct, frozen=True):
    """How long servers are expected to stay as they are.

    Attributes:
        between_failures: mean seconds from a server's start to its failure.
        to_repair: mean seconds from a server's failure to its return; infinite where none comes back.
    """

    between_failures: float
    to_repair: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read both means, ``FAILURE/REPAIR``, such as 5712h/132h; ``on`` stands for a cluster's, and ``off`` for none.

        Raises:
            UserError: the text is nothing of that.
        """
        if text in ("on", "off"):
            return cls(*CLUSTER) if text == "on" else None
        times = text.split("/")
        if len(times) != 2 or min(means := [parse_duration(each) for each in times]) <= 0:
            raise UserError(f"{text!r}: give on, off, or mean times to failure and repair such as 5712h/132h")
        return cls(*means)

    def until_change(self, live: int, dead: int) -> float:
        """Expected seconds until a server dies or comes back: failures and repairs compete."""
        rate = live / self.between_failures + dead / self.to_repair
        return 1 / rate if rate else math.inf


OF_A_CLUSTER = Outlook(*CLUSTER)


class Move(msgspec.Struct, frozen=True):
    """What another placement would bring, and cost.

    Attributes:
        now: seconds of an iteration by re-routing.
        then: seconds of an iteration with the other placement.
        copied: bytes in all.
        busiest: bytes that one server gets at most: copies to different servers go on at the same time.
        bandwidth: bytes per second into a server that training leaves.
        pause: seconds in which all stand still when the placement is applied.
    """

    now: float
    then: float
    copied: int
    busiest: int
    bandwidth: float
    pause: float

    @property
    def copying(self) -> float:
        """Seconds that the copies take, while training goes on."""
        return self.busiest / self.bandwidth


class Decision(msgspec.Struct, frozen=True):
    """Whether it pays.

    Attributes:
        moves: whether layers move.
        line: why, with the numbers.
        gained: iterations that moving makes more until the expected change; negative if it makes fewer.
    """

    moves: bool
    line: str
    gained: float


def decide(move: Move, until: float) -> Decision:
    """Decide for a live set.

    Args:
        move: what the best placement for it would bring and cost.
        until: seconds until servers are expected to change; infinite if never.
    """
    times = f"{move.then:.4g} s instead of {move.now:.4g} s an iteration"
    if move.then >= move.now:
        return Decision(False, f"re-route on: no placement is faster ({times})", 0.0)
    if until > move.copying + move.pause:
        gained = (until - move.copying) * (1 / move.then - 1 / move.now) - move.pause / move.then
    else:
        gained = -move.pause / move.now
    costs, what = f"{seconds_text(move.pause)} of standing still", "share out micro-batches anew"
    if move.copied:
        what = "move layers"
        copies = f"{_bytes(move.copied)} to copy, {_bytes(move.busiest)} of it to one server"
        costs = f"{copies} ({seconds_text(move.copying)} while training goes on), {costs}"
    change = "no change of servers expected"
    if math.isfinite(until):
        change = f"servers expected to change in {seconds_text(until)}"
    numbers = f"{times}; {costs}; {change}"
    if gained <= 0:
        return Decision(False, f"re-route on, moving loses {_iterations(-gained)}: {numbers}", gained)
    return Decision(True, f"{what}, which gains {_iterations(gained)}: {numbers}", gained)


def _iterations(number: float) -> str:
    return f"{number:,.0f} iterations" if number >= 1000 else f"{number:.4g} iterations"


def _bytes(amount: float) -> str:
    return memory_text(amount, "byte")
