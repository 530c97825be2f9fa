"""Jobs and plans, for notebooks and scripts.

Names are those of the command line and its defaults are the defaults here; paths are text or ``Path``. Nothing of this
needs torch.
"""

import math
import operator
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

import msgspec

from recycle import jobfile
from recycle.duration import parse_duration
from recycle.errors import IllegalPlan, UserError
from recycle.job import Job, Server
from recycle.plan.checker import check_plan, require_legal
from recycle.plan.document import load_plan as load_plan_file
from recycle.plan.document import save_plan
from recycle.plan.memory import peak_memory
from recycle.plan.mode import ROUTINGS, Mode
from recycle.plan.plan import Plan
from recycle.planner import make
from recycle.planner.explain import Explanation, explain
from recycle.planner.model.stopping import MaxMoves, MaxSeconds
from recycle.view.html import page
from recycle.view.panel import Panel, make_panels
from recycle.view.subject import subject_of
from recycle.view.svg import draw

PathLike = str | os.PathLike[str]

MODES: Mapping[str, Collection[str]] = {
    "backward": ("fused", "split"),
    "optimizer": ("global", "staggered"),
    "routing": ROUTINGS.keys(),
}
"""The words of a mode, by what they choose."""

MOST_DRAWN = 20_000
"""Instructions of a plan that a notebook draws without being asked."""


def make_job(pipelines: int, stages: int, micro_batches: int, **keys: Any) -> Job:
    """``recycle.Job``: a job from the keys of a job file, all of which docs/reference/job-file.md lists.

    Args:
        pipelines: the data-parallel degree.
        stages: per pipeline.
        micro_batches: per pipeline and iteration.
        keys: any others, such as ``forward``, ``optimizer``, ``latency``, ``limit`` or ``time_unit``; one number for
            all stages, or a list with one per stage.

    Raises:
        JobError: a key is unknown, or has a value that makes no job.
    """
    shape = {"pipelines": pipelines, "stages": stages, "micro_batches": micro_batches}
    return jobfile.load_job(None, {**shape, **keys})


def load_job(path: PathLike) -> Job:
    """The job of a job file.

    Raises:
        UserError: the file cannot be read, or describes no job.
    """
    return jobfile.load_job(read_path("path", path), {})


class Planned:
    """A plan, with what one asks of it. In a notebook, it is drawn.

    Args:
        plan: the plan itself.

    Attributes:
        plan: see above.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def job(self) -> Job:
        """What is planned."""
        return self.plan.job

    @property
    def dead(self) -> list[str]:
        """The dead servers' names."""
        return [str(each) for each in self.plan.dead]

    @property
    def period(self) -> int:
        """Time of an iteration, in the job's unit."""
        return self.plan.period

    @property
    def bound(self) -> int:
        """What no plan's period can be below."""
        return self.plan.bound

    @property
    def makespan(self) -> int:
        """End of the last compute instruction."""
        return self.plan.makespan

    @property
    def throughput(self) -> float:
        """Against fault-free 1F1B, which has 1."""
        return self.plan.throughput

    @property
    def peak_memory(self) -> dict[str, int]:
        """By a live server's name, the most that it holds for micro-batches at any time, in the job's unit."""
        return {
            str(server): peak_memory(self.job, server, [each for each in program if each.op.is_compute])
            for server, program in self.plan.programs.items()
        }

    def check(self) -> list[str]:
        """What makes the plan illegal, a line each; nothing for a legal one."""
        return [each.message for each in check_plan(self.plan)]

    def explain(self) -> Explanation:
        """What bounds the plan, what its failures cost, and what would help."""
        return explain(self.plan)

    def svg(self, iterations: int = 1) -> str:
        """A picture.

        Raises:
            IllegalPlan: ``check`` objects to it.
        """
        return draw([each.chart for each in self._panels(iterations)])

    def html(self, iterations: int = 1) -> str:
        """A page to explore in a browser.

        Raises:
            IllegalPlan: ``check`` objects to it.
        """
        return page(self._panels(iterations))

    def save(self, path: PathLike) -> None:
        """Write the plan file.

        Raises:
            UserError: it cannot be written.
        """
        save_plan(self.plan, read_path("path", path))

    def _panels(self, iterations: int) -> list[Panel]:
        count = read_count("iterations", iterations, 1)
        require_legal(self.plan, self.job.name)
        return make_panels([subject_of(self.plan, self.job.name, count)], "stage")

    def __repr__(self) -> str:
        dead = ", ".join(self.dead) or "none"
        period, bound = self.job.time_text(self.period), self.job.time_text(self.bound)
        return f"<plan of {self.job.name}, dead: {dead}, period {period}, bound {bound}>"

    def _repr_svg_(self) -> str | None:
        """None, so that a notebook shows the text, of an illegal plan, and where it would be of tens of megabytes."""
        if sum(map(len, self.plan.programs.values())) > MOST_DRAWN:
            return None
        with suppress(IllegalPlan):
            return self.svg()
        return None


def make_plan(
    job: Job,
    dead: str | Server | Iterable[str | Server] = (),
    *,
    budget: str | float = "2s",
    moves: int | None = None,
    seed: int = 0,
    prove: str | float = "0s",
    mode: Mode | str = Mode(),  # noqa: B008 - immutable
) -> Planned:
    """Plan a job around its dead servers.

    Args:
        job: what is trained.
        dead: the servers that are dead, by name, such as ``"W1_2"``, ``"W1_2,W0_3"`` or ``["W1_2"]``.
        budget: processor time to search, such as ``500ms`` or ``2s``, or seconds.
        moves: search for so many moves instead, which gives the same plan on every machine.
        seed: of the random search.
        prove: time for the exact solver to prove or improve the plan afterwards.
        mode: what the plan may do; also in words, such as ``"fused"`` or ``"fused global free"``.

    Raises:
        UserError: something that was given cannot be used, or no plan exists.
    """
    read_job(job)
    effort = read_effort(budget, moves, seed)
    effort = msgspec.structs.replace(effort, proof=read_seconds("prove", prove), until_interrupted=True)
    return Planned(make.make_plan(job, read_servers(dead), read_mode(mode), effort))


def read_effort(budget: str | float, moves: int | None, seed: int) -> make.Effort:
    """How hard to search, as ``make_plan`` is told.

    Raises:
        UserError: something of it cannot be used.
    """
    if moves is not None:
        moves = read_count("moves", moves)
    seconds = read_seconds("budget", budget)
    stop = MaxSeconds(seconds) if moves is None else MaxMoves(moves)
    return make.Effort((stop,), f"{seconds:g} s" if moves is None else f"{moves} moves", read_seed(seed))


def read_job(job: Job) -> Job:
    """The job that was given.

    Raises:
        UserError: it is none.
    """
    if not isinstance(job, Job):
        raise UserError(f"job is {job!r}: give what recycle.Job or recycle.load_job returns")
    return job


def read_count(name: str, count: int, least: int = 0) -> int:
    """A number of something.

    Args:
        name: of what.
        count: the number that was given.
        least: what it may be.

    Raises:
        UserError: it is no whole number, or less.
    """
    number = _whole(count)
    if number is None or number < least:
        raise UserError(f"{name} is {count!r}: give a number, {least} or more")
    return number


def read_seed(seed: int) -> int:
    """A seed.

    Raises:
        UserError: it is no whole number.
    """
    number = _whole(seed)
    if number is None:
        raise UserError(f"seed is {seed!r}: give a whole number")
    return number


def _whole(value: object) -> int | None:
    """A whole number, of numpy's too; None if it is none."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return operator.index(value)
    return None


def read_path(name: str, path: PathLike) -> Path:
    """The path of something.

    Args:
        name: of what.
        path: what was given.

    Raises:
        UserError: it is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"{name} is {path!r}: give a path, as text or as a Path")
    return Path(path)


def read_servers(dead: str | Server | Iterable[str | Server]) -> list[Server]:
    """Servers as people write them: a name, several between commas, or a list.

    Raises:
        UserError: something of it is no server.
    """
    if isinstance(dead, str):
        dead = [each.strip() for each in dead.split(",") if each.strip()]
    elif isinstance(dead, Server):
        dead = [dead]
    try:
        return [each if isinstance(each, Server) else Server.parse(each) for each in dead]
    except TypeError as error:
        raise UserError(f"dead is {dead!r}: give names of servers, such as ['W1_2']") from error


def read_mode(mode: Mode | str) -> Mode:
    """A mode, or its words: of fused and split, global and staggered, home and free.

    Raises:
        UserError: a word is of none of them.
    """
    if isinstance(mode, Mode):
        return mode
    if not isinstance(mode, str):
        raise UserError(f"mode is {mode!r}: give a recycle.plan.mode.Mode, or words such as 'fused global'")
    chosen: dict[str, str] = {}
    for word in mode.replace(",", " ").split():
        field = next((name for name, words in MODES.items() if word in words), None)
        if field is None or chosen.get(field, word) != word:
            every = "; ".join(" or ".join(words) for words in MODES.values())
            raise UserError(f"mode {mode!r}: {word!r} does not fit; give words of: {every}")
        chosen[field] = word
    return msgspec.convert(chosen, Mode)


def read_seconds(name: str, duration: str | float) -> float:
    """A duration in seconds.

    Args:
        name: of what.
        duration: a text such as ``2s``, or seconds.

    Raises:
        UserError: it is neither.
    """
    if isinstance(duration, str):
        return parse_duration(duration, name)
    if (
        not isinstance(duration, SupportsIndex | SupportsFloat)
        or isinstance(duration, bool)
        or not 0 <= duration < math.inf
    ):
        raise UserError(f"{name} is {duration!r}: give seconds, or a text such as '2s'")
    return float(duration)


def load_plan(path: PathLike) -> Planned:
    """The plan of a plan file.

    Raises:
        UserError: it cannot be read, or is no plan of this version.
    """
    return Planned(load_plan_file(read_path("path", path)))
