"""Making a catalogue: every vector of failure counts is planned once, ahead of time."""

import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from itertools import combinations_with_replacement
from pathlib import Path

import msgspec

from recycle.errors import UserError
from recycle.files import read_bytes, write_whole
from recycle.job import DeadServers, Job
from recycle.plan.catalogue import FORMAT, VERSION, Entry, Index, write_catalogue
from recycle.plan.mode import Mode
from recycle.plan.normalise import Counts, canonical_dead
from recycle.plan.packing import (
    PackedPlan,
    References,
    decode_references,
    encode_references,
    make_references,
    pack_plan,
)
from recycle.plan.plan import Form
from recycle.planner.assemble import baseline_period
from recycle.planner.make import Effort, make_plan
from recycle.processors import pool

MOST_PLANS = 100_000
"""Plans beyond which no catalogue is begun."""

MOST_REFERENCES = 4
"""Plans that the others are packed against: so many programs of a server are within the compression's reach."""

_MARK = re.compile(rb"[0-9a-f]{64}")
"""What tells a folder of plans that a run was making from all others."""


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
    watch: Callable[[int, int, Entry], None],
    workers: int = 0,
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
        watch: called with (plans done, plans in all, the plan's figures) after each plan.
        workers: processes that plan; 0 to plan in this one.

    Raises:
        UserError: the job or the catalogue is too large, the target cannot be written, or an interrupted run beside it
            was for something else.
    """
    job.require_size()
    job.require_even("a catalogue")
    _require_few(job, failures)
    cases = [canonical_dead(job, counts) for counts in failure_vectors(job, failures)]
    parts = _open_parts(path, job, mode, failures, effort, form)
    references = _references(parts, job, mode, failures, effort, form)
    planner = _Planner(parts, job, mode, effort, form, references)
    entries: dict[int, Entry] = {}
    with _running(planner, list(enumerate(cases)), workers) as made:
        for number, entry in made:
            entries[number] = entry
            watch(len(entries), len(cases), entry)
    listed = [entries[number] for number in range(len(cases))]
    index = Index(FORMAT, VERSION, job, mode, failures, baseline_period(job), listed)
    members = ((entry.member, read_bytes(planner.part(number))) for number, entry in enumerate(listed))
    write_catalogue(path, index, encode_references(references), members)
    shutil.rmtree(parts)


class _Planner(msgspec.Struct, frozen=True):
    """Plans cases, each some dead servers, into a folder, in any process."""

    parts: Path
    job: Job
    mode: Mode
    effort: Effort
    form: Form
    references: References

    def part(self, number: int) -> Path:
        """Where the plan of a case is kept."""
        return self.parts / f"plan-{number}"

    def __call__(self, case: tuple[int, DeadServers]) -> tuple[int, Entry]:
        number, dead = case
        part = self.part(number)
        if part.exists():
            packed = msgspec.msgpack.decode(read_bytes(part), type=PackedPlan)
        else:
            plan = make_plan(self.job, dead, self.mode, self.effort, self.form)
            packed = pack_plan(plan, self.references)
            write_whole(part, msgspec.msgpack.encode(packed))
        head = packed.plan(str(part))
        return number, Entry(dead.counts, head.period, head.bound, head.makespan)


@contextmanager
def _running(
    planner: _Planner, cases: Sequence[tuple[int, DeadServers]], workers: int
) -> Iterator[Iterator[tuple[int, Entry]]]:
    """The figures of every case's plan as they are made, each with the case's number."""
    if not workers:
        yield map(planner, cases)
        return
    with pool(workers) as executor:
        futures = [executor.submit(planner, case) for case in cases]
        yield (future.result() for future in as_completed(futures))


def _references(parts: Path, job: Job, mode: Mode, failures: int, effort: Effort, form: Form) -> References:
    """Programs of plans with few failures in a middle stage: what the plans of a catalogue have in common."""
    kept = parts / "references"
    if not kept.exists():
        middle = job.depth // 2
        plans = []
        for count in range(min(failures, job.pipelines - 1, MOST_REFERENCES - 1) + 1):
            counts = tuple(count if stage == middle else 0 for stage in range(job.depth))
            plans.append(make_plan(job, canonical_dead(job, counts), mode, effort, form))
        write_whole(kept, encode_references(make_references(plans)))
    return decode_references(read_bytes(kept), str(kept))


def _require_few(job: Job, failures: int) -> None:
    most = math.comb(job.depth + failures, failures)
    if most > MOST_PLANS:
        raise UserError(
            f"failures {failures}: {job.depth} stages can lose up to {failures} servers in as many as {most} ways, "
            f"and a catalogue has {MOST_PLANS} plans at most; give fewer failures, and plan others with recycle plan"
        )


def parts_of(path: Path) -> Path:
    """The folder beside a catalogue that keeps its plans until it is whole."""
    return path.with_name(f"{path.name}.part")


def _open_parts(path: Path, job: Job, mode: Mode, failures: int, effort: Effort, form: Form) -> Path:
    """The folder of an interrupted run, or a new one; its mark tells what it is for."""
    parts = parts_of(path)
    marked = parts / "mark"
    what = msgspec.json.encode((job, mode, failures, effort.budget, effort.seed, form))
    mark = hashlib.sha256(what).hexdigest().encode()
    if os.path.lexists(parts):
        found = read_bytes(marked) if marked.is_file() and not parts.is_symlink() else b""
        if not _MARK.fullmatch(found):
            raise UserError(
                f"{parts}: plans are kept there until the catalogue is whole, and something else is there; move it "
                "away, or write the catalogue elsewhere"
            )
        if found != mark:
            raise UserError(
                f"{parts}: an interrupted run for another job, mode, number of failures, budget or seed left its "
                "plans here; delete the folder, or write the catalogue elsewhere"
            )
        return parts
    try:
        parts.mkdir()
    except OSError as error:
        raise UserError(f"{parts}: cannot be made: {error.strerror}") from error
    write_whole(marked, mark)
    return parts
