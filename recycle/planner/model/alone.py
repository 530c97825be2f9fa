"""One pipeline of those that are not alike, as a job of its own."""

from itertools import pairwise

import msgspec

from recycle.holding import placed
from recycle.job import Job, Stage


def alone(job: Job, pipeline: int, joined: bool) -> Job:
    """A pipeline as a job of one, with the costs that its servers' speeds make of the chunks'.

    Args:
        job: whose pipelines are not alike.
        pipeline: which; its servers are those of its crew, in that order.
        joined: make one chunk of neighbouring chunks on one server.
    """
    assert not job.even, "all pipelines are alike"
    servers = [placed(job, server) for server in job.crews[pipeline]]
    runs = chunk_runs(job, pipeline) if joined else [range(chunk, chunk + 1) for chunk in range(len(job.stages))]
    of_server = [tuple(number for number, run in enumerate(runs) if run.start in server.chunks) for server in servers]
    stages: dict[int, Stage] = {}
    for server, numbers in zip(servers, of_server, strict=True):
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
        micro_batches=job.loads[pipeline],
        stages=tuple(stages[number] for number in range(len(runs))),
        latency=tuple(job.latency[run.stop - 1] for run in runs[:-1]),
        placement=tuple(of_server),
        layout=msgspec.UNSET,
    )


def chunk_runs(job: Job, pipeline: int) -> list[range]:
    """The chunks of the model in runs that one server of the pipeline executes back to back."""
    place = {chunk: server for server in job.crews[pipeline] for chunk in placed(job, server).chunks}
    chunks = len(job.stages)
    cuts = [0, *(chunk for chunk in range(1, chunks) if place[chunk] != place[chunk - 1]), chunks]
    return [range(*cut) for cut in pairwise(cuts)]
