"""What options and arguments hold: how their texts are read, and what the help calls them."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import click
from click.shell_completion import CompletionItem
from click.types import IntParamType

from recycle.digits import parse_whole
from recycle.duration import parse_duration
from recycle.errors import UserError
from recycle.files import STANDARD, require_writable
from recycle.job import Server
from recycle.placing.decision import Outlook
from recycle.state.redundancy import Racks, Redundancy

T = TypeVar("T")


class Parsed(click.ParamType[T]):
    """What a function reads from a text.

    Args:
        name: what it is, as the help has it.
        parse: reads it, and raises a UserError for what is none.
        known: the names that a shell completes it with, by what else the command line says.
    """

    def __init__(
        self, name: str, parse: Callable[[str], T], known: Callable[[click.Context], Iterable[str]] = lambda _: ()
    ) -> None:
        self.name = name
        self._parse = parse
        self._known = known

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: D102 - click's contract
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{each}") for each in self._known(ctx) if each.startswith(last)]

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
            if (name := name.strip()) not in cls._fields:
                raise UserError(f"{part!r}: give {', '.join(cls._fields)} with a duration, such as silence=9s,hang=60s")
            if name in given:
                raise UserError(f"{text!r}: {name} is given twice; leave one of them out")
            given[name] = parse_duration(duration)
            if not given[name]:
                raise UserError(f"{part!r}: give a time above 0")
        return cls(**given)


class KeepInMemory(NamedTuple):
    """How hosts keep each version in memory.

    Attributes:
        redundancy: as how many pieces; None if they do not.
        racks: which hosts fail together.
    """

    redundancy: Redundancy | None
    racks: Racks

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``off``, ``copies=2`` or ``parity=4+1``, the last two with ``,racks=a1,a2/b1,b2`` or without.

        Raises:
            UserError: it is something else.
        """
        redundancy, _, racks = text.partition(",racks=")
        keeping = cls(Redundancy.parse(redundancy), Racks.parse(racks))
        if keeping.redundancy is None and racks:
            raise UserError(
                f"{text!r}: racks say where copies are kept, and there are none; give copies=N, or off alone"
            )
        return keeping


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


def _known_servers(context: click.Context) -> list[str]:
    """Those of the run, plan, catalogue or job that a command line names."""
    from recycle.jobfile import load_job
    from recycle.plan.catalogue import Catalogue
    from recycle.plan.document import load_plan
    from recycle.record.recording import PLAN

    given = context.params
    shape = {key: value for key in ("pipelines", "stages", "micro_batches") if (value := given.get(key)) is not None}
    # Behind an option that lacks its value, click gives arguments no names.
    named = given.get("folder") or given.get("job_file") or next(iter(context.args), None)
    path = Path(named) if named else None
    try:
        if given.get("plan_file"):
            job = load_plan(Path(given["plan_file"])).job
        elif given.get("catalogue"):
            job = Catalogue(Path(given["catalogue"])).index.job
        else:
            job = load_plan(path / PLAN).job if path and path.is_dir() else load_job(path, shape)
    except UserError:
        return []
    return [str(each) for each in job.servers()]


SERVER = Parsed("server", lambda text: Server.parse(text.strip()), _known_servers)
"""A server such as W1_2."""

SERVERS = Parsed("server[,server...]", _servers, _known_servers)
"""Comma-separated servers such as W1_2,W0_3."""

KEEPING = Parsed("keeping", KeepInMemory.parse)
"""How hosts keep each version in memory, and which of them fail together."""

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


def _above_zero(text: str) -> float:
    if not (seconds := parse_duration(text)):
        raise UserError(f"{text!r}: give a time above 0")
    return seconds


TIME = Parsed("duration", _above_zero)
"""The same, and not 0."""


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
        endings: one of which its name must have.
    """

    name = "file"

    def __init__(self, *endings: str) -> None:
        self._endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: D102 - click's contract
        _require_name(value)
        path = Path(value)
        if path != STANDARD:
            if path.suffix.lower() not in self._endings:
                self.fail(f"{path}: give a name that ends in {' or '.join(self._endings)}", param, ctx)
            # Where a link leads to, the file is written.
            if not (folder := Path(os.path.realpath(path)).parent).is_dir():
                shown = path.parent if not path.is_symlink() else folder
                self.fail(f"{path}: there is no folder {shown}; make it first", param, ctx)
        require_writable(path)
        return path


class OutputFolder(click.ParamType[Path]):
    """A folder that will be made, if it is not there. What would keep it from that is said before any work is done.

    Args:
        tried: whether that is found here, and not later by what begins the work.
    """

    name = "directory"

    def __init__(self, *, tried: bool = True) -> None:
        self._tried = tried

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: D102 - click's contract
        _require_name(value)
        path = Path(value)
        if path == STANDARD:
            raise UserError(f"{path}: a folder is written, and standard output is none; give it a name")
        if self._tried:
            require_writable(path, folder=True)
        return path
