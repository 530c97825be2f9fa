"""The catalogue: plans for every vector of failure counts up to some number of failures, in one file.

The file is a zip archive of ``index.json``, a packed plan per vector, ``plans/0-0-1-0``, and ``references``, which
holds what the plans have in common. A plan is read when it is looked up, and a program when a server asks for it, so a
look-up costs little however large the job is.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Annotated

import msgspec

from recycle.errors import JobError, NoPlanError, PlanFileError, UserError
from recycle.files import read_bytes, whole_file
from recycle.job import DeadServers, Job, Server
from recycle.kinds import CATALOGUE, mistaken
from recycle.plan.document import Time, decode
from recycle.plan.instruction import Instruction
from recycle.plan.mode import Mode
from recycle.plan.normalise import Counts, Relabelling, relabel_plan, relabelling
from recycle.plan.packing import PackedPlan, References, decode_references
from recycle.plan.plan import Plan
from recycle.wording import plural

FORMAT = "recycle catalogue"
VERSION = 2
INDEX = "index.json"
REFERENCES = "references"

LARGEST_MEMBER = 1 << 26
"""Bytes of one member of the archive at most."""

LINE = 128
"""Bytes that the instructions of one micro-batch at one chunk take at most, with those that bring and send it."""

_BAD_ARCHIVE = (zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError, EOFError, ValueError, zlib.error)
"""What the library raises for archives that are none, are cut short, or are packed or encrypted in other ways."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of one plan of a catalogue.

    Attributes:
        counts: how many servers of each stage are dead.
        period: of the plan.
        bound: likewise.
        makespan: likewise.
    """

    counts: tuple[Count, ...]
    period: Time
    bound: Time
    makespan: Time

    @property
    def member(self) -> str:
        """The name of its plan in the archive."""
        return f"plans/{'-'.join(map(str, self.counts))}"

    @property
    def figures(self) -> tuple[int, int, int]:
        """Its times, which the plan says too."""
        return self.period, self.bound, self.makespan


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
        job: of the catalogue.
        dead: the dead servers that were asked for.
        entry: the figures of their plan.
        reading: how the stored plan is read for them.
        source: the archive and the member that the plan is stored in.
        packed: the plan as it is stored.
        references: what its programs were packed against.
    """

    job: Job
    dead: DeadServers
    entry: Entry
    reading: Relabelling
    source: str
    packed: PackedPlan
    references: References

    def program(self, server: Server) -> tuple[Instruction, ...]:
        """What one live server executes.

        Raises:
            PlanFileError: the stored program is damaged.
        """
        return self.reading.program(self._program(self.reading.canonical(server)))

    def plan_of(self, server: Server) -> Plan:
        """The plan with the program of one live server and no other: what that server needs, quickly.

        Raises:
            PlanFileError: the stored plan is damaged.
        """
        plan = self._head()
        programs = {server: self.program(server)}
        return msgspec.structs.replace(plan, dead=self.dead, roles=self.reading.roles, programs=programs)

    def plan(self) -> Plan:
        """The whole plan.

        Raises:
            PlanFileError: the stored plan is damaged.
        """
        plan = self._head()
        live = [server for server in plan.job.servers() if server not in plan.dead]
        programs = {server: self._program(server) for server in live}
        try:
            plan.job.require_held(len(live) + len(plan.dead), sum(map(len, programs.values())))
        except JobError as error:
            raise PlanFileError(f"{self.source}: {error}; make the catalogue again") from error
        return relabel_plan(msgspec.structs.replace(plan, programs=programs), self.dead, self.reading)

    def _head(self) -> Plan:
        """The stored plan without programs, which must be the one that the index says."""
        plan = self.packed.plan(self.source)
        figures = plan.period, plan.bound, plan.makespan
        if (plan.job, plan.dead.counts, figures) != (self.job, self.dead.counts, self.entry.figures):
            raise PlanFileError(f"{self.source}: this is another plan than the index says; make the catalogue again")
        return plan

    def _program(self, server: Server) -> tuple[Instruction, ...]:
        tasks = sum(self.job.loads) * len(self.job.stages)
        return self.packed.program(server, self.references, self.source, LINE * (tasks + LINE))


class Catalogue:
    """A catalogue file. All of it is read at once, so it outlives its file, and can be used on both sides of a fork.

    Args:
        path: where it is.
        job: the job that it must have been made for; None to take what it holds.

    Attributes:
        checksum: of the file.

    Raises:
        UserError: it cannot be read.
        PlanFileError: it is no catalogue of this version, or was made for another job.
    """

    def __init__(self, path: Path, job: Job | None = None) -> None:
        self.path = path
        content = read_bytes(path)
        self.checksum = hashlib.blake2b(content, digest_size=8).hexdigest()
        try:
            self.archive = zipfile.ZipFile(BytesIO(content))
            self.index = decode(self._read(INDEX), Index, FORMAT, VERSION, str(path))
            self.references = decode_references(self._read(REFERENCES), str(path))
        except UserError:
            raise
        except _BAD_ARCHIVE as error:
            mistake = mistaken(content, CATALOGUE) or "this is no catalogue, or it is cut short; make it again"
            raise PlanFileError(f"{path}: {mistake}") from error
        try:
            self.index.job.require_held(len(self.references), None)
        except JobError as error:
            raise PlanFileError(f"{path}: {error}; make the catalogue again - at `$.job`") from error
        if job is not None and job != self.index.job:
            raise PlanFileError(
                f"{path}: this catalogue was made for another job ({other_job(self.index.job, job)}); "
                "make one for this job with recycle catalogue"
            )
        self.entries: dict[Counts, Entry] = {entry.counts: entry for entry in self.index.entries}
        whole = self.index.job.dead_servers(()).counts
        if whole not in self.entries or len(self.entries) != len(self.index.entries):
            raise PlanFileError(f"{path}: its index has no plan for all servers, or two for the same; make it again")

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
                f"{self.path}: no plan for failure counts {counts}, {plural(sum(counts), 'failure')}; it holds every "
                f"vector up to {self.index.failures} that leaves each stage a live server. Plan this one with recycle "
                f"plan, or make a catalogue with --failures {sum(counts)}"
            )
        try:
            packed = msgspec.msgpack.decode(self._read(entry.member), type=PackedPlan)
        except (*_BAD_ARCHIVE, msgspec.DecodeError, RecursionError) as error:
            raise PlanFileError(f"{self.path}: plan {entry.member} is damaged; make the catalogue again") from error
        return Found(
            job=job,
            dead=dead,
            entry=entry,
            reading=relabelling(job, dead),
            source=f"{self.path}: {entry.member}",
            packed=packed,
            references=self.references,
        )

    def require_lowered(self) -> None:
        """Refuse plans that no server can run; all of a catalogue have one form.

        Raises:
            PlanFileError: they have no transfers, or the first one is damaged.
        """
        plan = self.look_up(()).packed.plan(str(self.path))
        plan.require_lowered(str(self.path), "make the catalogue again")

    def _read(self, name: str) -> bytes:
        """A member, unless it unpacks to more than any has."""
        if self.archive.getinfo(name).file_size > LARGEST_MEMBER:
            raise zipfile.BadZipFile(f"{name} has more than {LARGEST_MEMBER} bytes")
        return self.archive.read(name)


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
