"""What options and arguments hold: how their texts are read, and what the help calls them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import click

from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.files import STANDARD
from recycle.job import Server
from recycle.placing.decision import Outlook
from recycle.state.racks import Racks
from recycle.state.redundancy import Redundancy

T = TypeVar("T")


class Parsed(click.ParamType[T]):
    """What a function reads from a text.

    Args:
        name: what it is, as the help has it.
        parse: reads it, and raises a UserError for what is none.
    """

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:  # noqa: D102 - click's contract
        if not isinstance(value, str):
            given: T = value
            return given
        try:
            return self._parse(value)
        except UserError as error:
            self.fail(str(error), param, ctx)


class Timeouts(NamedTuple):
    """How long a run waits, in seconds.

    Attributes:
        silence: for a host's next sign of life, until it is declared dead.
        hang: for a server on a host that lives, until it is declared dead.
        start: for servers to start, once the first one is ready.
    """

    silence: float = 3.0
    hang: float = 15.0
    start: float = 600.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``silence=9s,hang=60s``; what is not named is as usual.

        Raises:
            UserError: a name is unknown, or its value is no duration.
        """
        given: dict[str, float] = {}
        for part in filter(None, text.split(",")):
            name, _, duration = part.partition("=")
            if name.strip() not in cls._fields:
                raise UserError(f"{part!r}: give {', '.join(cls._fields)} with a duration, such as silence=9s,hang=60s")
            given[name.strip()] = parse_duration(duration)
        return cls(**given)


class Count(click.IntRange):
    """A whole number, at least and at most so much where that is given."""

    name = "number"


def _servers(text: str) -> tuple[Server, ...]:
    return tuple(Server.parse(part.strip()) for part in text.split(",") if part.strip())


SERVER = Parsed("server", lambda text: Server.parse(text.strip()))
"""A server such as W1_2."""

SERVERS = Parsed("server[,server...]", _servers)
"""Comma-separated servers such as W1_2,W0_3."""

REDUNDANCY = Parsed("redundancy", Redundancy.parse)
"""How hosts keep each version in memory; None for ``off``."""

RACKS = Parsed("racks", Racks.parse)
"""Which hosts fail together."""

OUTLOOK = Parsed("outlook", Outlook.parse)
"""Whether layers move, and how long servers stay as they are; None for ``off``."""

TIMEOUTS = Parsed("timeouts", Timeouts.parse)
"""How long a run waits for hosts, servers and their start."""

DURATION = Parsed("duration", parse_duration)
"""A duration such as 500ms, 2s, 1m or 5 (seconds), in seconds."""


class OutputFile(click.ParamType[Path]):
    """A file that will be written. What would keep it from that is said before any work is done.

    ``-`` is standard output, whatever the ending.

    Args:
        endings: one of which its name must have.
    """

    name = "file"

    def __init__(self, *endings: str) -> None:
        self._endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: D102 - click's contract
        path = Path(value)
        if path == STANDARD:
            return path
        if path.suffix.lower() not in self._endings:
            self.fail(f"{path}: give a name that ends in {' or '.join(self._endings)}", param, ctx)
        if path.is_dir():
            self.fail(f"{path}: there is a folder of this name", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{path}: there is no folder {path.parent}; make it first", param, ctx)
        return path
