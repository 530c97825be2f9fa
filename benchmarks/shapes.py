"""Sizes of jobs on a benchmark's command line, so that each of them can be tried with a small one."""

import argparse
from collections.abc import Callable
from pathlib import Path

from recycle.job import Job
from recycle.jobfile import load_job

PAPER = Path("schedules/paper.toml")


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
    parser.add_argument(
        "--shape", type=sizes(2), default=(3, 4), metavar="DxP", help="pipelines x stages (default 3x4)"
    )


def paper_shaped(shape: tuple[int, ...]) -> Job:
    """The worked example's job with other numbers of pipelines and stages."""
    pipelines, stages = shape
    return load_job(PAPER, {"pipelines": pipelines, "stages": stages})
