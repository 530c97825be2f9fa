"""What options Megatron's training scripts know, release by release, and which words of a command line nobody reads."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import NamedTuple

from recycle.errors import UserError

TABLE = "megatron_options.txt"


class Option(NamedTuple):
    """An option of Megatron's.

    Attributes:
        values: how many it takes: a number, ``+`` for at least one, ``*`` for any number, ``?`` for one or none.
        releases: that know it, the oldest first.
    """

    values: str
    releases: tuple[str, ...]


class Unread(NamedTuple):
    """A word of a command line that nobody reads.

    Attributes:
        word: as it was typed.
        remedy: what was meant, or what to do.
    """

    word: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.word}: {self.remedy}"


@cache
def known_options() -> dict[str, Option]:
    """Every option of the releases that were looked at, by its name."""
    rows = (files(__package__) / TABLE).read_text().splitlines()
    return {
        name: Option(values, tuple(releases))
        for name, values, *releases in (row.split() for row in rows if not row.startswith("#"))
    }


def known_releases() -> list[str]:
    """The releases that were looked at, the oldest first."""
    found = {release for option in known_options().values() for release in option.releases}
    return sorted(found, key=lambda release: [int(part) for part in release.split(".")])


def choose_release(asked: str | None) -> str:
    """The release whose options count: the one that was asked for, that is installed, or the newest that is known.

    Raises:
        UserError: the one that was asked for is not known.
    """
    known = known_releases()
    if asked is not None:
        if asked not in known:
            raise UserError(f"Megatron {asked}: the options of {', '.join(known)} are known; give one of these")
        return asked
    try:
        installed = version("megatron-core")
    except PackageNotFoundError:
        return known[-1]
    return installed if installed in known else known[-1]


def find_unread(words: Sequence[str], release: str) -> Iterator[Unread]:
    """What of a script's arguments nobody reads, because Megatron does not know it.

    Args:
        words: the script's arguments, without recycle's.
        release: of Megatron.
    """
    options = known_options()
    expected: float = 0
    for word in words:
        name, _, value = word.partition("=")
        if not word.startswith("--"):
            if expected <= 0:
                yield Unread(word, "no option before it takes this value")
            expected -= 1
            continue
        option = options.get(name)
        if option is None or release not in option.releases:
            yield Unread(name, _remedy(name, option, release))
            # Whatever it was meant to be, what follows belongs to it.
            expected = float("inf")
        else:
            expected = 0 if value else float(option.values) if option.values.isdecimal() else float("inf")


def _remedy(name: str, option: Option | None, release: str) -> str:
    if option is not None:
        return f"Megatron {release} does not know it, and {', '.join(option.releases)} does"
    known = [each for each, found in known_options().items() if release in found.releases]
    close = get_close_matches(name, known, n=1, cutoff=0.8)
    return f"did you mean {close[0]}?" if close else f"Megatron {release} does not know it, unless the script adds it"
