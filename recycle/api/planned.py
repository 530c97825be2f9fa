"""Jobs and plans, for notebooks and scripts.

Names are those of the command line and its defaults are the defaults here; paths are text or ``Path``. Nothing of this
needs torch.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recycle import jobfile
from recycle.duration import parse_duration
from recycle.job import Job, Server
from recycle.plan.checker import check_plan
from recycle.plan.document import load_plan as load_plan_file
from recycle.plan.document import save_plan
from recycle.plan.mode import Mode
from recycle.plan.plan import Form, Plan
from recycle.planner import make
from recycle.planner.explain import Explanation, explain
from recycle.planner.model.stopping import MaxMoves, MaxSeconds
from recycle.view.html import page
from recycle.view.panel import Panel, make_panels
from recycle.view.subject import subject_of
from recycle.view.svg import draw

PathLike = str | os.PathLike[str]

MOST_DRAWN = 20_000
"""Instructions of a plan that a notebook draws without being asked."""


def make_job(pipelines: int, stages: int, micro_batches: int, **keys: Any) -> Job:
    """A job from the keys of a job file, all of which docs/reference/job-file.md lists.

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
    return jobfile.load_job(Path(path), {})


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
        return self.plan.retention

    def check(self) -> list[str]:
        """What makes the plan illegal, a line each; nothing for a legal one."""
        return [each.message for each in check_plan(self.plan)]

    def explain(self) -> Explanation:
        """What bounds the plan, what its failures cost, and what would help."""
        return explain(self.plan)

    def svg(self, iterations: int = 1) -> str:
        """A picture."""
        return draw([each.chart for each in self._panels(iterations)])

    def html(self, iterations: int = 1) -> str:
        """A page to explore in a browser."""
        return page(self._panels(iterations))

    def save(self, path: PathLike) -> None:
        """Write the plan file.

        Raises:
            UserError: it cannot be written.
        """
        save_plan(self.plan, Path(path))

    def _panels(self, iterations: int) -> list[Panel]:
        return make_panels([subject_of(self.plan, self.job.name, iterations)], "stage")

    def __repr__(self) -> str:
        dead = ", ".join(self.dead) or "none"
        period, bound = self.job.time_text(self.period), self.job.time_text(self.bound)
        return f"<plan of {self.job.name}, dead: {dead}, period {period}, bound {bound}>"

    def _repr_svg_(self) -> str | None:
        """None, so that a notebook shows the text, where there is no picture or it would be of tens of megabytes."""
        if sum(map(len, self.plan.programs.values())) > MOST_DRAWN:
            return None
        subject = subject_of(self.plan, self.job.name)
        return None if subject.timeline is None else draw([each.chart for each in make_panels([subject], "stage")])


def make_plan(
    job: Job,
    dead: Iterable[str] = (),
    *,
    budget: str = "2s",
    moves: int | None = None,
    seed: int = 0,
    prove: str = "0s",
    mode: Mode = Mode(),  # noqa: B008 - immutable
    form: Form = "lowered",
) -> Planned:
    """Plan a job around its dead servers.

    Args:
        job: what is trained.
        dead: the names of the servers that are dead, such as ``W1_2``.
        budget: processor time to search, such as ``500ms`` or ``2s``.
        moves: search for so many moves instead, which gives the same plan on every machine.
        seed: of the random search.
        prove: time for the exact solver to prove or improve the plan afterwards.
        mode: what the plan may do.
        form: ``lowered``, with transfers, reductions and optimizer steps, or ``compute``.

    Raises:
        UserError: something that was given cannot be used, or no plan exists.
    """
    stop = MaxSeconds(parse_duration(budget)) if moves is None else MaxMoves(moves)
    effort = make.Effort(
        (stop,), budget if moves is None else f"{moves} moves", seed, parse_duration(prove), until_interrupted=True
    )
    return Planned(make.make_plan(job, [Server.parse(each) for each in dead], mode, effort, form))


def load_plan(path: PathLike) -> Planned:
    """The plan of a plan file.

    Raises:
        UserError: it cannot be read, or is no plan of this version.
    """
    return Planned(load_plan_file(Path(path)))
