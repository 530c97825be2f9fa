"""The catalogue: plans for every vector of failure counts up to some number of failures, in one file.

The file is a zip archive of ``index.json``, a packed plan per vector, ``plans/0-0-1-0``, and ``references``, which
holds what the plans have in common. A plan is read when it is looked up, and a program when a server asks for it, so a
look-up costs little however large the job is.
"""

import zipfile
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Annotated

import msgspec

from recycle.errors import NoPlanError, PlanFileError, UserError
from recycle.files import read_bytes, whole_file
from recycle.job import DeadServers, Job, Server
from recycle.kinds import CATALOGUE, mistaken
from recycle.plan.document import Time, decode
from recycle.plan.instruction import Instruction
from recycle.plan.migration import Migration, best_migration
from recycle.plan.mode import Mode
from recycle.plan.normalise import Counts, Relabelling, relabel_plan, relabelling
from recycle.plan.packing import PackedPlan, References, decode_references
from recycle.plan.plan import Plan

FORMAT = "recycle catalogue"
VERSION = 2
INDEX = "index.json"
REFERENCES = "references"

Count = Annotated[int, msgspec.Meta(ge=0)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of one plan of a catalogue."""

    counts: tuple[Count, ...]
    period: Time
    bound: Time
    makespan: Time

    @property
    def member(self) -> str:
        """The name of its plan in the archive."""
        return member_name(self.counts)


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a catalogue holds.

    Attributes:
        format: always ``recycle catalogue``.
        version: of the format.
        job: what all plans were made for.
        mode: likewise.
        failures: every vector of counts with up to so many failures has a plan.
        baseline: period of the job's fault-free 1F1B schedule.
        entries: the plans' figures.
    """

    format: str
    version: int
    job: Job
    mode: Mode
    failures: Count
    baseline: Time
    entries: list[Entry]


class Found(msgspec.Struct, frozen=True):
    """A look-up's result: the figures at once, programs when they are asked for.

    Attributes:
        dead: the dead servers that were asked for.
        entry: the figures of their plan.
        reading: how the stored plan is read for them.
        migration: a move of one server that would save time, if the catalogue knows one.
        source: the archive and the member that the plan is stored in.
        packed: the plan as it is stored.
        references: what its programs were packed against.
    """

    dead: DeadServers
    entry: Entry
    reading: Relabelling
    migration: Migration | None
    source: str
    packed: PackedPlan
    references: References

    def program(self, server: Server) -> tuple[Instruction, ...]:
        """What one live server executes.

        Raises:
            PlanFileError: the stored program is damaged.
        """
        canonical = self.reading.canonical(server)
        return self.reading.program(self.packed.program(canonical, self.references, self.source))

    def plan_of(self, server: Server) -> Plan:
        """The plan with the program of one live server and no other: what that server needs, quickly.

        Raises:
            PlanFileError: the stored plan is damaged.
        """
        plan = self.packed.plan(self.source)
        programs = {server: self.program(server)}
        return msgspec.structs.replace(plan, dead=self.dead, roles=self.reading.roles, programs=programs)

    def plan(self) -> Plan:
        """The whole plan.

        Raises:
            PlanFileError: the stored plan is damaged.
        """
        plan = self.packed.plan(self.source)
        live = (server for server in plan.job.servers() if server not in plan.dead)
        programs = {server: self.packed.program(server, self.references, self.source) for server in live}
        return relabel_plan(msgspec.structs.replace(plan, programs=programs), self.dead)


class Catalogue:
    """A catalogue file, opened.

    Args:
        path: where it is.
        job: the job that it must have been made for; None to take what it holds.
        held: whether all of it is read now: then it can be used on both sides of a fork, and outlives its file.

    Raises:
        UserError: it cannot be read.
        PlanFileError: it is no catalogue of this version, or was made for another job.
    """

    def __init__(self, path: Path, job: Job | None = None, *, held: bool = False) -> None:
        self.path = path
        try:
            self.archive = zipfile.ZipFile(BytesIO(path.read_bytes()) if held else path)
            self.index = decode(self.archive.read(INDEX), Index, FORMAT, VERSION, str(path))
            self.references = decode_references(self.archive.read(REFERENCES), str(path))
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error
        except (zipfile.BadZipFile, KeyError) as error:
            mistake = mistaken(read_bytes(path), CATALOGUE) or "this is no catalogue, or it is cut short; make it again"
            raise PlanFileError(f"{path}: {mistake}") from error
        if job is not None and job != self.index.job:
            raise PlanFileError(
                f"{path}: this catalogue was made for another job ({other_job(self.index.job, job)}); "
                "make one for this job with recycle catalogue"
            )
        self.entries = {entry.counts: entry for entry in self.index.entries}

    def look_up(self, dead: Iterable[Server]) -> Found:
        """The plan for some dead servers, relabelled.

        Raises:
            JobError: a dead server is none of the job's.
            NoPlanError: the catalogue has no plan for so many failures.
        """
        job = self.index.job
        dead = job.dead_servers(dead)
        counts = dead.counts
        entry = self.entries.get(counts)
        if entry is None:
            raise NoPlanError(
                f"{self.path}: no plan for failure counts {counts}, {sum(counts)} failures; it holds every vector "
                f"up to {self.index.failures} that leaves each stage a live server. Plan this one with recycle plan, "
                f"or make a catalogue with --failures {sum(counts)}"
            )
        try:
            packed = msgspec.msgpack.decode(self.archive.read(entry.member), type=PackedPlan)
        except (zipfile.BadZipFile, KeyError, msgspec.DecodeError) as error:
            raise PlanFileError(f"{self.path}: plan {entry.member} is damaged; make the catalogue again") from error
        return Found(
            dead=dead,
            entry=entry,
            reading=relabelling(job, dead),
            migration=best_migration(job, dead, entry.period, self._period),
            source=f"{self.path}: {entry.member}",
            packed=packed,
            references=self.references,
        )

    def _period(self, counts: Counts) -> int | None:
        entry = self.entries.get(counts)
        return entry.period if entry else None


def member_name(counts: Counts) -> str:
    """The archive's name for the plan of some failure counts."""
    return f"plans/{'-'.join(map(str, counts))}"


def write_catalogue(path: Path, index: Index, references: bytes, plans: Iterator[tuple[str, bytes]]) -> None:
    """Write a catalogue, whole or not at all; the same bytes for the same plans.

    Args:
        path: where to.
        index: what it holds.
        references: what the plans were packed against, encoded.
        plans: each plan's member and its packed plan, encoded.

    Raises:
        UserError: the file cannot be written.
    """
    with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        head = msgspec.json.format(msgspec.json.encode(index), indent=2)
        for name, content in [(INDEX, head), (REFERENCES, references), *plans]:
            # A fixed date, so that equal plans make equal files.
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            archive.writestr(member, content, zipfile.ZIP_DEFLATED if name == INDEX else zipfile.ZIP_STORED, 6)


def other_job(theirs: Job, ours: Job) -> str:
    """The first field in which two jobs differ, in words."""
    for field in Job.__struct_fields__:
        left, right = getattr(theirs, field), getattr(ours, field)
        if left != right:
            if field == "stages" and len(left) == len(right):
                stage = next(number for number in range(len(left)) if left[number] != right[number])
                return f"stage {stage} is {left[stage]} there and {right[stage]} here"
            return (
                f"{field} is {left!r} there and {right!r} here" if field != "stages" else "the number of stages differs"
            )
    return "they are equal"
