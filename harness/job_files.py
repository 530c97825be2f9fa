"""Jobs written as job files."""

from collections.abc import Sequence
from typing import Any

import msgspec

from recycle.job import Job
from recycle.jobfile import Costs, Memory, PerStage
from recycle.placement import placement_text


def encode_job(job: Job) -> bytes:
    """The content of a job file that describes this job."""
    # Of the extra for tests: benchmarks import this file without it.
    import tomli_w

    def column(key: str) -> PerStage:
        return _shortest([getattr(stage, key) for stage in job.stages])

    def limit(chunks: Sequence[int], room: int) -> int:
        return room + sum(job.stages[chunk].state for chunk in chunks)

    head: dict[str, Any] = {}
    limits: PerStage | None = None
    if isinstance(job.layout, msgspec.UnsetType):
        text = placement_text(job.chunks)
        head = {"pipelines": job.pipelines, "stages": job.depth, "micro_batches": job.micro_batches}
        if not job.standard:
            head["placement"] = text if not text.startswith("[") else [list(chunks) for chunks in job.chunks]
        limits = _shortest([limit(chunks, job.limit(place)) for place, chunks in enumerate(job.chunks)])
    else:
        head["layout"] = [
            {
                "micro_batches": pipeline.micro_batches,
                "servers": [
                    {"chunks": each.chunks, "speed": each.speed, "limit": limit(each.chunks, each.limit)}
                    | ({} if each.pipeline is None else {"pipeline": each.pipeline})
                    for each in pipeline.servers
                ],
            }
            for pipeline in job.layout
        ]
    times = {key: column(key) for key in Costs.__struct_fields__ if key != "latency"}
    amounts = {key: column(key) for key in Memory.__struct_fields__ if key != "limit"}
    costs, memory = Costs(**times, latency=_shortest(job.latency)), Memory(**amounts, limit=limits)
    names = {"name": job.name, "time_unit": job.time_unit, "memory_unit": job.memory_unit}
    tables = {"costs": msgspec.to_builtins(costs), "memory": msgspec.to_builtins(memory)}
    if limits is None:
        del tables["memory"]["limit"]
    layout = {"layout": head.pop("layout")} if "layout" in head else {}
    return tomli_w.dumps({**head, **names, **tables, **layout}).encode()


def _shortest(values: Sequence[int]) -> PerStage:
    """One number where all are the same."""
    return list(values) if len(set(values)) > 1 else next(iter(values), 0)
