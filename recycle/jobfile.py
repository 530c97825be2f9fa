"""Job files: a job as a small TOML file, or as the same keys given as flags."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from recycle.errors import JobError, UserError
from recycle.files import read_bytes
from recycle.job import Job, Stage, memory_needed
from recycle.keys import convert
from recycle.kinds import JOB, read_toml
from recycle.placement import (
    FULL_SPEED,
    PlacedPipeline,
    PlacedServer,
    Placement,
    parse_placement,
    require_placement,
)

Number = int | float
PerStage = Number | list[Number]


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``[costs]`` table: times in ``time_unit``, one number for all stages (chunks) or one per stage (chunk)."""

    forward: PerStage = 1
    input_gradient: PerStage = 1
    weight_gradient: PerStage = 1
    optimizer: PerStage = 0
    reduction: PerStage = 0
    latency: PerStage = 0


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``[memory]`` table: amounts in ``memory_unit``, like costs; ``limit`` is per server of a pipeline."""

    held: PerStage = 1
    released_at_input_gradient: PerStage = 0
    taken_at_input_gradient: PerStage = 0
    limit: PerStage | None = None
    state: PerStage = 0


class ServerDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of a pipeline's ``servers``: chunks, speed in percent, memory as in ``[memory]``, and where it computes."""

    chunks: list[int]
    speed: int = FULL_SPEED
    limit: Number | None = None
    pipeline: int | None = None


class PipelineDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[layout]]`` table: a pipeline with its own servers."""

    micro_batches: int
    servers: list[ServerDocument]


class JobDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole job file. ``layout`` takes the place of the numbers before it."""

    pipelines: int = 0
    stages: int = 0
    micro_batches: int = 0
    layout: list[PipelineDocument] = []
    name: str = "job"
    time_unit: str = "slot"
    memory_unit: str = "activation"
    placement: str | list[list[int]] = "standard"
    costs: Costs = Costs()
    memory: Memory = Memory()


TOP = ("pipelines", "stages", "micro_batches", "name")
_TABLE = re.compile(r"\b(?:costs|memory)\.")
TABLES = dict.fromkeys(Costs.__struct_fields__, "costs") | dict.fromkeys(Memory.__struct_fields__, "memory")


def load_job(path: Path | None, flags: Mapping[str, Any]) -> Job:
    """Build a job from a file, from flags, or from a file with flags on top.

    Args:
        path: a TOML file, or None if the flags describe the whole job.
        flags: keys of the job file (``forward``, ``limit``, ...) with their values.

    Raises:
        UserError: the file cannot be read.
        JobError: a key is missing, unknown or has a value that makes no job.
    """
    document: dict[str, Any] = {}
    if path is not None:
        content = read_bytes(path)
        try:
            document = read_toml(content, JOB)
        except UserError as error:
            raise JobError(f"{path}: {error}") from error
    for key, value in flags.items():
        table = document.setdefault(TABLES[key], {}) if key in TABLES else document
        if not isinstance(table, dict):
            raise _refusal(path, f"{TABLES[key]} is {table!r}: expected a table of keys")
        table[key] = value
    try:
        # First, so that a key that is misspelt is not said to be missing.
        read = convert(document, JobDocument)
        for key in TOP[:3]:
            if "layout" in document:
                if key in document:
                    raise JobError(f"{key} follows from layout; leave it out")
            elif key not in document:
                raise JobError(f"{key} is missing; give it in the job file or as --{key.replace('_', '-')}")
        job = _build(read)
        if not any(stage.forward or stage.input_gradient or stage.weight_gradient for stage in job.stages):
            raise JobError("costs.forward, input_gradient and weight_gradient are 0 at every stage; give one a time")
        return job
    except msgspec.ValidationError as error:
        raise _refusal(path, f"{error}; docs/reference/job-file.md lists every key") from error
    except JobError as error:
        raise _refusal(path, str(error)) from error


def _refusal(path: Path | None, what: str) -> JobError:
    """What is wrong with a job file or, if there is none, with a flag or an argument: it names that without a table."""
    if path is not None:
        return JobError(f"{path}: {what}")
    wrong, at, rest = _TABLE.sub("", what).partition(" - at `$.")
    name, _, remedy = rest.partition("`")
    return JobError(f"{name}: {wrong}{remedy}" if at else wrong)


def _build(document: JobDocument) -> Job:
    if document.layout:
        return _build_layout(document)
    depth = document.stages
    if not 1 <= depth <= 10_000:
        raise JobError(f"stages is {depth}: a job has between 1 and 10000 stages")
    placement = _placement(document.placement, depth)
    count = sum(map(len, placement))
    columns = _columns(document, count)
    state = columns["state"]
    # What a plan may use: the state is there all the time.
    room = [_room(columns, chunks, depth) for chunks in placement]
    if document.memory.limit is not None:
        what = "server of a pipeline" if count > depth else "stage"
        limit = _per_stage(document.memory.limit, "memory.limit", depth, what)
        room = [each - sum(state[chunk] for chunk in chunks) for each, chunks in zip(limit, placement, strict=True)]
    limits = {chunk: amount for chunks, amount in zip(placement, room, strict=True) for chunk in chunks}
    return _job(document, columns, limits, document.pipelines, document.micro_batches, placement=placement)


def _build_layout(document: JobDocument) -> Job:
    """A job whose pipelines have servers of their own."""
    if document.placement != "standard":
        raise JobError("placement: the servers of a layout name their chunks themselves; leave it out")
    if isinstance(document.memory.limit, list):
        raise JobError("memory.limit: give one number for all servers of a layout, or limit at each of them")
    chunks = [chunk for pipeline in document.layout for server in pipeline.servers for chunk in server.chunks]
    count = 1 + max(chunks, default=-1)
    if not 1 <= count <= len(chunks):
        raise JobError(f"layout: its servers hold {len(chunks)} chunks up to number {count - 1}; give every chunk once")
    columns = _columns(document, count)
    layout, limits = [], dict.fromkeys(range(count), 0)
    together = Counter(
        number if server.pipeline is None else server.pipeline
        for number, pipeline in enumerate(document.layout)
        for server in pipeline.servers
    )
    for number, pipeline in enumerate(document.layout):
        servers = []
        for place, server in enumerate(pipeline.servers):
            if not server.chunks:
                raise JobError(f"layout: server {place} of pipeline {number} holds no chunk; leave it out")
            mine = [chunk for chunk in server.chunks if 0 <= chunk < count]
            state = sum(columns["state"][chunk] for chunk in mine)
            given = document.memory.limit if server.limit is None else server.limit
            where = f"limit of server {place} of pipeline {number}"
            crew = together[number if server.pipeline is None else server.pipeline]
            room = _room(columns, mine, crew) if given is None else _whole(given, where) - state
            servers.append(PlacedServer(tuple(server.chunks), room, server.speed, server.pipeline))
            limits |= {chunk: max(room, limits.get(chunk, 0)) for chunk in server.chunks}
        layout.append(PlacedPipeline(pipeline.micro_batches, tuple(servers)))
    most = max(pipeline.micro_batches for pipeline in layout)
    return _job(document, columns, limits, len(layout), most, layout=tuple(layout))


def _room(columns: Mapping[str, Sequence[int]], chunks: Sequence[int], micro_batches: int) -> int:
    """Memory of a server of some chunks in which nothing has to wait, for 1F1B's micro-batches."""
    held, taken = ([columns[key][chunk] for chunk in chunks] for key in ("held", "taken_at_input_gradient"))
    return memory_needed(micro_batches, held, taken)


def _columns(document: JobDocument, count: int) -> dict[str, list[int]]:
    """Per key of the costs and the memory that chunks have, its value at each of so many chunks."""
    times = {key: getattr(document.costs, key) for key in Costs.__struct_fields__ if key != "latency"}
    amounts = {key: getattr(document.memory, key) for key in Memory.__struct_fields__ if key != "limit"}
    return {key: _per_stage(value, f"costs.{key}", count) for key, value in times.items()} | {
        key: _per_stage(value, f"memory.{key}", count) for key, value in amounts.items()
    }


def _job(
    document: JobDocument,
    columns: Mapping[str, Sequence[int]],
    limits: Mapping[int, int],
    pipelines: int,
    micro_batches: int,
    **placed: Any,
) -> Job:
    count = len(columns["held"])
    costs = [{key: column[chunk] for key, column in columns.items()} for chunk in range(count)]
    return Job(
        pipelines=pipelines,
        micro_batches=micro_batches,
        stages=tuple(Stage(**each, limit=limits[chunk]) for chunk, each in enumerate(costs)),
        latency=tuple(_per_stage(document.costs.latency, "costs.latency", count - 1, "boundary between stages")),
        name=document.name,
        time_unit=document.time_unit,
        memory_unit=document.memory_unit,
        **placed,
    )


def _placement(value: str | list[list[int]], servers: int) -> Placement:
    if isinstance(value, str):
        return parse_placement(value, servers)
    placement = tuple(map(tuple, value))
    if len(placement) != servers:
        raise JobError(f"placement lists {len(placement)} servers, and stages is {servers}: give the chunks of each")
    require_placement(placement, sum(map(len, placement)))
    return placement


def _per_stage(value: PerStage, field: str, count: int, what: str = "stage") -> list[int]:
    if not isinstance(value, list):
        return [_whole(value, field)] * count
    if len(value) != count:
        raise JobError(f"{field} has {len(value)} values: give one number for all, or one per {what}, {count} in all")
    return [_whole(each, f"{field}[{place}]") for place, each in enumerate(value)]


def _whole(value: Number, field: str) -> int:
    if isinstance(value, float) and not math.isfinite(value):
        raise JobError(f"{field} is {value}: give a finite number")
    if value != int(value):
        raise JobError(f"{field} is {value}: give whole numbers, of a finer unit if need be (microseconds, say)")
    return int(value)
