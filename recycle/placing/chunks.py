"""A fleet as a job: chunks are the common refinement of the cuts of all its pipelines."""

from itertools import pairwise

from recycle.job import Job
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.placing.fleet import Fleet
from recycle.placing.layers import Model, Run


def fleet_job(model: Model, fleet: Fleet) -> Job:
    """The job that a fleet's servers train together: server s of its pipeline d is W<d>_<s>.

    Raises:
        JobError: a server has not the memory for a single micro-batch.
    """
    edges = sorted({edge for formed in fleet.pipelines for run in formed.template.runs for edge in run})
    chunks = list(pairwise(edges))
    layout = tuple(
        PlacedPipeline(formed.micro_batches, tuple(_placed(model, run, chunks) for run in formed.template.runs))
        for formed in fleet.pipelines
    )
    return Job(
        pipelines=len(layout),
        micro_batches=max(pipeline.micro_batches for pipeline in layout),
        stages=tuple(map(model.stage, chunks)),
        latency=(model.latency,) * (len(chunks) - 1),
        name="fleet",
        layout=layout,
    )


def _placed(model: Model, run: Run, chunks: list[Run]) -> PlacedServer:
    held = tuple(number for number, (first, _) in enumerate(chunks) if run[0] <= first < run[1])
    return PlacedServer(held, model.stage(run).limit)
