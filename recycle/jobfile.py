"""Job files: a job as a small TOML file, or as the same keys given as flags."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from recycle.errors import JobError, UserError
from recycle.files import read_bytes
from recycle.job import Job, Stage
from recycle.kinds import JOB, read_toml
from recycle.placement import Placement, parse_placement, placement_text, require_placement

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
    limit: PerStage | None = None
    state: PerStage = 0


class JobDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole job file."""

    pipelines: int
    stages: int
    micro_batches: int
    name: str = "job"
    time_unit: str = "slot"
    memory_unit: str = "activation"
    placement: str | list[list[int]] = "standard"
    costs: Costs = Costs()
    memory: Memory = Memory()


TOP = ("pipelines", "stages", "micro_batches", "name")
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
    source = str(path) if path else "flags"
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
            raise JobError(f"{source}: {TABLES[key]} is {table!r}: expected a table of keys")
        table[key] = value
    for key in TOP[:3]:
        if key not in document:
            raise JobError(f"{source}: {key} is missing; give it in the job file or as --{key.replace('_', '-')}")
    try:
        return _build(msgspec.convert(document, JobDocument))
    except msgspec.ValidationError as error:
        raise JobError(f"{source}: {error}; docs/job.md lists every key") from error
    except JobError as error:
        raise JobError(f"{source}: {error}") from error


def encode_job(job: Job) -> bytes:
    """The content of a job file that describes this job."""

    def column(key: str) -> PerStage:
        return _shortest([getattr(stage, key) for stage in job.stages])

    text = placement_text(job.chunks)
    document = JobDocument(
        pipelines=job.pipelines,
        stages=job.depth,
        micro_batches=job.micro_batches,
        name=job.name,
        time_unit=job.time_unit,
        memory_unit=job.memory_unit,
        placement=text if not text.startswith("[") else [list(chunks) for chunks in job.chunks],
        costs=Costs(
            forward=column("forward"),
            input_gradient=column("input_gradient"),
            weight_gradient=column("weight_gradient"),
            optimizer=column("optimizer"),
            reduction=column("reduction"),
            latency=_shortest(job.latency),
        ),
        memory=Memory(
            held=column("held"),
            released_at_input_gradient=column("released_at_input_gradient"),
            limit=_shortest(
                [
                    job.limit(place) + sum(job.stages[chunk].state for chunk in chunks)
                    for place, chunks in enumerate(job.chunks)
                ]
            ),
            state=column("state"),
        ),
    )
    fields = msgspec.to_builtins(document)
    if job.standard:
        del fields["placement"]
    return tomli_w.dumps(fields).encode()


def _shortest(values: Sequence[int]) -> PerStage:
    """One number where all are the same."""
    return list(values) if len(set(values)) > 1 else next(iter(values), 0)


def _build(document: JobDocument) -> Job:
    depth = document.stages
    if not 1 <= depth <= 10_000:
        raise JobError(f"stages is {depth}: a job has between 1 and 10000 stages")
    placement = _placement(document.placement, depth)
    count = sum(map(len, placement))
    costs, memory = document.costs, document.memory
    held = _per_stage(memory.held, "memory.held", count)
    state = _per_stage(memory.state, "memory.state", count)
    # What a plan may use: the state is there all the time.
    room = [depth * sum(held[chunk] for chunk in chunks) for chunks in placement]
    if memory.limit is not None:
        limit = _per_stage(memory.limit, "memory.limit", depth, "server of a pipeline" if count > depth else "stage")
        room = [each - sum(state[chunk] for chunk in chunks) for each, chunks in zip(limit, placement, strict=True)]
    limits = {chunk: amount for chunks, amount in zip(placement, room, strict=True) for chunk in chunks}
    columns = {
        "forward": _per_stage(costs.forward, "costs.forward", count),
        "input_gradient": _per_stage(costs.input_gradient, "costs.input_gradient", count),
        "weight_gradient": _per_stage(costs.weight_gradient, "costs.weight_gradient", count),
        "optimizer": _per_stage(costs.optimizer, "costs.optimizer", count),
        "reduction": _per_stage(costs.reduction, "costs.reduction", count),
        "held": held,
        "released_at_input_gradient": _per_stage(
            memory.released_at_input_gradient, "memory.released_at_input_gradient", count
        ),
        "limit": [limits[chunk] for chunk in range(count)],
        "state": state,
    }
    return Job(
        pipelines=document.pipelines,
        micro_batches=document.micro_batches,
        stages=tuple(Stage(**{key: column[stage] for key, column in columns.items()}) for stage in range(count)),
        latency=tuple(_per_stage(costs.latency, "costs.latency", count - 1, "boundary between stages")),
        name=document.name,
        time_unit=document.time_unit,
        memory_unit=document.memory_unit,
        placement=placement,
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
