"""What options and arguments hold: how their texts are read, and what the help calls them."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import click
from click.types import IntParamType

from recycle.digits import parse_whole
from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.files import STANDARD, require_writable
from recycle.job import Server
from recycle.placing.decision import Outlook
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


def _given(text: str) -> str:
    if not text:
        raise UserError("it is empty; give a value, or leave the option out")
    return text


TEXT = Parsed("text", _given)
"""A text that stands for something: none is what a variable of the shell gives that is not set."""


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
            if (name := name.strip()) not in cls._fields:
                raise UserError(f"{part!r}: give {', '.join(cls._fields)} with a duration, such as silence=9s,hang=60s")
            if name in given:
                raise UserError(f"{text!r}: {name} is given twice; leave one of them out")
            given[name] = parse_duration(duration)
            if not given[name]:
                raise UserError(f"{part!r}: give a time above 0")
        return cls(**given)


class Saves(NamedTuple):
    """When checkpoints are made.

    Attributes:
        every: iterations between them; 0 for none before the end.
        keep: how many of the newest are kept.
    """

    every: int
    keep: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``100``, with ``,keep=3`` or without.

        Raises:
            UserError: it is something else.
        """
        found = re.fullmatch(r"(?P<every>[0-9]{1,9})(,keep=(?P<keep>0*[1-9][0-9]{0,8}))?", text)
        if found is None:
            raise UserError(f"{text!r}: give a number of iterations, with ,keep=N if not 2 checkpoints are to be kept")
        return cls(int(found["every"]), int(found["keep"] or 2))


class RandomFaults(NamedTuple):
    """Failures at random.

    Attributes:
        mtbf: mean seconds between them.
        seed: tells one sequence of them from another.
    """

    mtbf: float
    seed: int


def _faults(text: str) -> Path | RandomFaults:
    names = [part.partition("=")[0].strip() for part in text.split(",")]
    if names[0] != "mtbf" and ("=" not in text or os.path.lexists(text) or os.sep in text):
        _require_name(text)
        return Path(text)
    if unknown := [name for name in names if name not in ("mtbf", "seed")]:
        raise UserError(f"{text!r}: unknown name {unknown[0]!r}; write mtbf=30s,seed=1, or a path")
    mtbf, given, seed = text.removeprefix("mtbf=").partition(",seed=")
    try:
        number = parse_whole(seed if given else "0")
    except ValueError as error:
        raise UserError(f"{text!r}: give a whole number as seed, such as mtbf=30s,seed=1") from error
    return RandomFaults(parse_duration(mtbf), number)


class Whole(IntParamType):
    """A whole number in the digits 0 to 9."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: D102 - click's contract
        if isinstance(value, str):
            try:
                value = parse_whole(value, signed=True)
            except ValueError as error:
                self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


class Count(Whole, click.IntRange):
    """The same, at least and at most so much where that is given."""


def _servers(text: str) -> tuple[Server, ...]:
    named = tuple(Server.parse(part.strip()) for part in text.split(",") if part.strip())
    if text.strip() and not named:
        raise UserError(f"{text!r} names no server; write them as W1_2,W0_3")
    return named


SERVER = Parsed("server", lambda text: Server.parse(text.strip()))
"""A server such as W1_2."""

SERVERS = Parsed("server[,server...]", _servers)
"""Comma-separated servers such as W1_2,W0_3."""

KEEPING = Parsed("keeping", Redundancy.parse)
"""How hosts keep each version in memory."""

MOVING = Parsed("moving", Outlook.parse)
"""Whether layers move, and how long servers stay as they are."""

SAVES = Parsed("saves", Saves.parse)
"""When checkpoints are made, and how many are kept."""

FAULTS = Parsed("faults", _faults)
"""What goes wrong: a file, or failures at random."""

TIMEOUTS = Parsed("timeouts", Timeouts.parse)
"""How long a run waits for hosts, servers and their start."""

DURATION = Parsed("duration", parse_duration)
"""A duration such as 500ms, 2s, 1m or 5 (seconds), in seconds."""


def _require_name(text: Any) -> None:
    """Refuse an empty path, as of a variable of the shell that is not set: it would be that of this folder."""
    if not str(text):
        raise click.BadParameter("'' is no path; give the name of a file or folder")


class InputPath(click.Path):
    """A file or a folder that is read.

    Args:
        dir_okay: whether it may be a folder, where there is one.
    """

    def __init__(self, *, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: D102 - click's contract
        _require_name(value)
        return super().convert(value, param, ctx)


class OutputFile(click.ParamType[Path]):
    """A file that will be written. What would keep it from that is said before any work is done.

    ``-`` is standard output, whatever the ending.

    Args:
        ending: that its name must have.
    """

    name = "file"

    def __init__(self, ending: str) -> None:
        self._ending = ending

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: D102 - click's contract
        _require_name(value)
        path = Path(value)
        if path != STANDARD:
            if path.suffix.lower() != self._ending:
                self.fail(f"{path}: give a name that ends in {self._ending}", param, ctx)
            # Where a link leads to, the file is written.
            if not (folder := Path(os.path.realpath(path)).parent).is_dir():
                shown = path.parent if not path.is_symlink() else folder
                self.fail(f"{path}: there is no folder {shown}; make it first", param, ctx)
        require_writable(path)
        return path


class OutputFolder(click.ParamType[Path]):
    """A folder that will be made, if it is not there. What would keep it from that is found by what begins the work."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: D102 - click's contract
        _require_name(value)
        path = Path(value)
        if path == STANDARD:
            raise UserError(f"{path}: a folder is written, and standard output is none; give it a name")
        return path
