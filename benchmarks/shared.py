"""What benchmarks share: sizes on the command line, parts, rows that may be interrupted, and runs that take turns.

A shared machine is a tenth quicker in one minute than in the next, and to start processes takes some of that; so runs
that begin and end for every turn meet different machines, and many short turns meet the same one. A turn ends with an
iteration, and either run goes first in every other pair. Single turns still differ by some percent, so there are many,
and a median of fewer says little.
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from harness.processes import family, seconds_of, send_signal
from recycle.job import Job
from recycle.jobfile import load_job

WARM_UP = 8
PAPER = Path("schedules/paper.toml")


def run_part(description: str, parts: Mapping[str, Callable[[], int]]) -> int:
    """Run the part of a benchmark that the command line names first; gives its exit status.

    Args:
        description: of the benchmark; its first line is shown.
        parts: by their names; each reads the words that are left of the command line.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("part", choices=parts, help="each has a --help of its own")
    chosen = parser.parse_args(sys.argv[1:2]).part
    del sys.argv[1]
    return parts[chosen]()


def sizes(count: int) -> Callable[[str], tuple[int, ...]]:
    """What reads so many numbers with an x between them, as ``3x4``: the ``type`` of an option."""

    def read(text: str) -> tuple[int, ...]:
        try:
            found = tuple(map(int, text.split("x")))
        except ValueError:
            found = ()
        if len(found) != count or min(found) < 1:
            example = "x".join(("3", "4", "6")[:count])
            raise argparse.ArgumentTypeError(
                f"{text}: give {count} numbers with an x between them, for example {example}"
            )
        return found

    return read


def add_shape(parser: argparse.ArgumentParser) -> None:
    """The option ``--shape`` for another number of pipelines and stages than the worked example's."""
    parser.add_argument("--shape", type=sizes(2), default=(3, 4), metavar="DxP", help="pipelines x stages (3x4)")


def add_starts(parser: argparse.ArgumentParser, turns: str = "pairs", of: str = "of turns, in each start") -> None:
    """The options of runs that take turns: ``--starts``, ``--seconds``, and how many turns, by what they are called."""
    parser.add_argument("--starts", type=int, default=3, help="how often runs are started")
    parser.add_argument(f"--{turns}", type=several, default=12, help=of)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")


def paper_shaped(shape: tuple[int, ...]) -> Job:
    """The worked example's job with other numbers of pipelines and stages."""
    pipelines, stages = shape
    return load_job(PAPER, {"pipelines": pipelines, "stages": stages})


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block and not the program: what comes after it prints what there is."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted: what follows is of what was done until then", file=sys.stderr, flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Some processes that never sleep."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def several(text: str) -> int:
    """A number of pairs or rounds from which a spread can be told: two or more; for ``type=`` of an option.

    Raises:
        argparse.ArgumentTypeError: it is another one.
    """
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text}: give 2 or more, for their spread is told as well")
    return int(text)


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


def race(
    starts: Sequence[Callable[[], Contestant]], names: tuple[str, str], pairs: int, seconds: float
) -> list[tuple[Length, Length]]:
    """Start two runs, let them take turns, print what that says, and end them.

    Args:
        starts: of what it is compared with, and of what is measured.
        names: of both.
        pairs: of turns.
        seconds: of a turn.
    """
    with contextlib.ExitStack() as ends:
        contestants = []
        for start in starts:
            contestants.append(start())
            ends.callback(contestants[-1].end)
        found = take_turns(contestants[0], contestants[1], pairs, seconds)
    report(names, found)
    return found


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
