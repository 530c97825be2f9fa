"""One pipeline of those that are not alike, as a job of its own."""

from itertools import pairwise

import msgspec

from recycle.job import Job, Stage
from recycle.placement import PlacedPipeline


def alone(job: Job, pipeline: int, joined: bool) -> Job:
    """A pipeline as a job of one, with the costs that its servers' speeds make of the chunks'.

    Args:
        job: whose pipelines are not alike.
        pipeline: which.
        joined: make one chunk of neighbouring chunks on one server.
    """
    assert not isinstance(job.layout, msgspec.UnsetType), "all pipelines are alike"
    mine = job.layout[pipeline]
    runs = (
        chunk_runs(mine, len(job.stages)) if joined else [range(chunk, chunk + 1) for chunk in range(len(job.stages))]
    )
    of_server = [
        tuple(number for number, run in enumerate(runs) if run.start in server.chunks) for server in mine.servers
    ]
    stages: dict[int, Stage] = {}
    for server, numbers in zip(mine.servers, of_server, strict=True):
        for number in numbers:
            chunks = [job.stages[chunk] for chunk in runs[number]]
            stages[number] = Stage(
                forward=sum(server.time(chunk.forward) for chunk in chunks),
                input_gradient=sum(server.time(chunk.input_gradient) for chunk in chunks),
                weight_gradient=sum(server.time(chunk.weight_gradient) for chunk in chunks),
                optimizer=sum(server.time(chunk.optimizer) for chunk in chunks),
                reduction=sum(chunk.reduction for chunk in chunks),
                held=sum(chunk.held for chunk in chunks),
                released_at_input_gradient=sum(chunk.released_at_input_gradient for chunk in chunks),
                limit=server.limit,
            )
    return msgspec.structs.replace(
        job,
        pipelines=1,
        micro_batches=mine.micro_batches,
        stages=tuple(stages[number] for number in range(len(runs))),
        latency=tuple(job.latency[run.stop - 1] for run in runs[:-1]),
        # Who has given all its chunks to others is no server of this job.
        placement=tuple(filter(None, of_server)),
        layout=msgspec.UNSET,
    )


def chunk_runs(pipeline: PlacedPipeline, chunks: int) -> list[range]:
    """The chunks of the model in runs that one server of the pipeline executes back to back."""
    place = {chunk: number for number, server in enumerate(pipeline.servers) for chunk in server.chunks}
    cuts = [0, *(chunk for chunk in range(1, chunks) if place[chunk] != place[chunk - 1]), chunks]
    return [range(*cut) for cut in pairwise(cuts)]
