"""Making a catalogue: every vector of failure counts is planned once, ahead of time."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from pathlib import Path

import msgspec

from recycle.errors import UserError
from recycle.files import read_bytes, write_whole
from recycle.job import Job
from recycle.plan.catalogue import FORMAT, VERSION, Entry, Index, member_name, write_catalogue
from recycle.plan.document import decode_plan, encode_plan
from recycle.plan.mode import Mode
from recycle.plan.normalise import Counts, canonical_dead
from recycle.plan.plan import Form, Plan
from recycle.planner.assemble import baseline_period
from recycle.planner.make import Effort, make_plan


def failure_vectors(job: Job, failures: int) -> Iterator[Counts]:
    """Every vector of failure counts up to some number of failures that leaves each stage a live server."""
    for total in range(failures + 1):
        for stages in combinations_with_replacement(range(job.depth), total):
            counts = tuple(stages.count(stage) for stage in range(job.depth))
            if max(counts) < job.pipelines:
                yield counts


def make_catalogue(
    path: Path,
    job: Job,
    mode: Mode,
    failures: int,
    effort: Effort,
    form: Form,
    watch: Callable[[int, int, Counts, Plan], None],
) -> None:
    """Plan every vector of failure counts into one file.

    Every plan is kept beside the target as soon as it is made, so that an interrupted run is taken up where it ended.
    The target appears when all plans are there.

    Args:
        path: the catalogue to write.
        job: what is trained.
        mode: what the plans may do.
        failures: the largest number of failures to plan for.
        effort: how hard to search for each plan.
        form: whether transfers, reductions and optimizer steps are added.
        watch: called with (plans done, plans in all, counts, plan) after each plan.

    Raises:
        UserError: the target cannot be written, or an interrupted run beside it was for something else.
    """
    vectors = list(failure_vectors(job, failures))
    parts = _open_parts(path, job, mode, effort, form)
    entries = []
    for done, counts in enumerate(vectors, 1):
        part = parts / Path(member_name(counts)).name
        if part.exists():
            plan = decode_plan(read_bytes(part), str(part))
        else:
            plan = make_plan(job, canonical_dead(job, counts), mode, effort, form)
            write_whole(part, encode_plan(plan))
        entries.append(Entry(counts, plan.period, plan.bound, plan.makespan))
        watch(done, len(vectors), counts, plan)
    index = Index(FORMAT, VERSION, job, mode, failures, baseline_period(job), entries)
    members = ((entry.member, read_bytes(parts / Path(entry.member).name)) for entry in entries)
    write_catalogue(path, index, members)
    shutil.rmtree(parts)


def _open_parts(path: Path, job: Job, mode: Mode, effort: Effort, form: Form) -> Path:
    """The folder of an interrupted run, or a new one; its mark tells what it is for."""
    parts = path.with_name(f"{path.name}.part")
    what = msgspec.json.encode((job, mode, effort.budget, effort.seed, form))
    mark = hashlib.sha256(what).hexdigest().encode()
    try:
        parts.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{parts}: cannot be made: {error.strerror}") from error
    if not (parts / "mark").exists():
        write_whole(parts / "mark", mark)
    elif read_bytes(parts / "mark") != mark:
        raise UserError(
            f"{parts}: an interrupted run for another job, mode, budget or seed left its plans here; "
            "delete the folder, or write the catalogue elsewhere"
        )
    return parts
