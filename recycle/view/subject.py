"""What is shown: a plan with its planned time line, or a measured run."""

from pathlib import Path

import msgspec

from recycle.job import Job
from recycle.plan.checker import require_legal
from recycle.plan.document import load_plan
from recycle.plan.plan import Plan
from recycle.record.history import History, history_of
from recycle.record.measured import held_memory
from recycle.record.planned import timeline
from recycle.record.reading import load_run
from recycle.record.recording import PLAN
from recycle.record.timeline import Timeline
from recycle.record.totals import StepTotal, totals_of
from recycle.view.copies import StageCopies, copies_of
from recycle.wording import printable


class Subject(msgspec.Struct, frozen=True):
    """A plan or a run, ready to be drawn.

    Attributes:
        name: what to call it beside another one.
        plan: the plan; None for a measured run.
        timeline: when what is executed.
        history: what happened in a run; None for a plan.
        totals: loss and time of a run's steps.
        job: what a run trains, if that is known.
        copies: where the state of each of its stages is, if hosts keep it in memory.
    """

    name: str
    plan: Plan | None
    timeline: Timeline
    history: History | None = None
    totals: tuple[StepTotal, ...] = ()
    job: Job | None = None
    copies: tuple[StageCopies, ...] = ()


def subject_of(plan: Plan, name: str, iterations: int = 1) -> Subject:
    """A plan, which must be legal, with its time line over some iterations."""
    return Subject(name, plan, timeline(plan, iterations))


def load_subject(path: Path, iterations: int | None = None) -> Subject:
    """Read a plan file, a recording (``.jsonl``) or the directory of a run.

    Args:
        path: where it is.
        iterations: over how many iterations a plan is unrolled, and how many of a run's last ones are taken; by default
            one, and all.

    Raises:
        UserError: it cannot be read, or is neither.
        IllegalPlan: the plan is illegal.
    """
    if path.is_dir() or path.suffix == ".jsonl":
        line, facts = load_run(path, iterations)
        line = line.last(iterations) if iterations else line
        history, totals = history_of(facts), tuple(totals_of(facts))
        job = load_plan(path / PLAN).job if (path / PLAN).exists() else None
        if job is not None and not line.samples:
            line = msgspec.structs.replace(line, samples=held_memory(line, job))
        view = history.view
        copies = copies_of(facts, job, view.servers) if job is not None and view is not None else ()
        return Subject(printable(path.name), None, line, history=history, totals=totals, job=job, copies=copies)
    plan = load_plan(path)
    require_legal(plan, path)
    return subject_of(plan, printable(path.stem), iterations or 1)
