"""Two runs that take turns of a few seconds: one of them is stopped while the other one goes on.

A shared machine is a tenth quicker in one minute than in the next, and to start processes takes some of that; so runs
that begin and end for every turn meet different machines, and many short turns meet the same one. A turn ends with an
iteration, and either run goes first in every other pair. Single turns still differ by some percent, so there are many,
and a median of fewer says little.
"""

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.processes import family, seconds_of, send_signal

WARM_UP = 8


class Length(NamedTuple):
    """Of an iteration, in seconds: by the clock, and of the processor for all processes."""

    clock: float
    processor: float


class Contestant:
    """A run that has begun, and from now on goes on only in its turns.

    Args:
        process: its first process; the others have come from it.
        wait: waits for the end of an iteration.
    """

    def __init__(self, process: int, wait: Callable[[], object]) -> None:
        self._process = process
        self._wait = wait
        for _ in range(WARM_UP):
            wait()
        self._signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> Length:
        """Go on for some time, until an iteration is done; gives the mean length of one."""
        spent = self._spent()
        start = time.perf_counter()
        self._signal(signal.SIGCONT)
        iterations = 0
        while not iterations or time.perf_counter() - start < seconds:
            self._wait()
            iterations += 1
        clock = time.perf_counter() - start
        self._signal(signal.SIGSTOP)
        return Length(clock / iterations, (self._spent() - spent) / iterations)

    def end(self) -> None:
        """Go on no more."""
        self._signal(signal.SIGKILL)
        os.waitpid(self._process, 0)

    def _spent(self) -> float:
        """Seconds of the processor, of all its processes."""
        return sum(map(seconds_of, family(self._process)))

    def _signal(self, number: int) -> None:
        for process in family(self._process):
            send_signal(process, number)


def take_turns(stock: Contestant, ours: Contestant, pairs: int, seconds: float) -> list[tuple[Length, Length]]:
    """How long iterations of two runs are, in pairs of turns of so many seconds."""
    lengths: tuple[list[Length], list[Length]] = [], []
    for turn in range(2 * pairs):
        which = (turn + turn // 2) % 2
        lengths[which].append((stock, ours)[which].turn(seconds))
    return list(zip(*lengths, strict=True))


def report(names: tuple[str, str], pairs: Sequence[tuple[Length, Length]]) -> Length:
    """Print what pairs of turns say; gives the median ratios.

    Args:
        names: of what it is compared with, and of what is measured.
        pairs: of turns.
    """
    ratios = []
    for place, name in enumerate(Length._fields):
        found = [ours[place] / stock[place] for stock, ours in pairs]
        ratios.append(statistics.median(found))
        quarters = statistics.quantiles(found, n=4)
        medians = [
            f"{each} {statistics.median(pair[side][place] for pair in pairs) * 1e3:7.1f} ms"
            for side, each in enumerate(names)
        ]
        print(
            f"{name:<10} {', '.join(medians)}, median ratio {ratios[-1]:.3f}, middle half {quarters[0]:.3f} to "
            f"{quarters[2]:.3f}",
            flush=True,
        )
    return Length(*ratios)


def interval(starts: Sequence[Sequence[float]], draws: int = 2000) -> tuple[float, float, float]:
    """The median of ratios, between the ends of its interval of 95%: starts are drawn again, and pairs in each.

    Args:
        starts: the ratios of each start.
        draws: how often.
    """
    source, medians = random.Random(0), []
    for _ in range(draws):
        drawn = source.choices(starts, k=len(starts))
        medians.append(statistics.median(ratio for each in drawn for ratio in source.choices(each, k=len(each))))
    ends = statistics.quantiles(medians, n=40)
    return ends[0], statistics.median(ratio for each in starts for ratio in each), ends[-1]
