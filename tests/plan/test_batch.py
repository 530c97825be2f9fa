from hypothesis import given
from hypothesis import strategies as st

from recycle.job import Job, Stage
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.plan.batch import Batch

STAGE = Stage(1, 1, 1, 0, 0, 1, 0, 1)


def job_of(loads):
    pipelines = tuple(PlacedPipeline(load, (PlacedServer((0,), 1),)) for load in loads)
    return Job(len(loads), max(loads), (STAGE,), (), layout=pipelines)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_every_micro_batch_has_a_place_of_its_own_in_the_batch(loads):
    batch = Batch(job_of(loads))
    places = [batch.place(home, number) for home, load in enumerate(loads) for number in range(load)]
    assert places == [(row, number) for row in range(batch.rows) for number in range(batch.length)]
    assert batch.rows in (1, len(loads))


@given(st.integers(1, 5), st.integers(1, 9))
def test_pipelines_that_bring_the_same_have_a_row_each(pipelines, micro_batches):
    for job in (Job(pipelines, micro_batches, (STAGE,), ()), job_of([micro_batches] * pipelines)):
        batch = Batch(job)
        assert (batch.rows, batch.length) == (pipelines, micro_batches)
        assert batch.place(pipelines - 1, 0) == (pipelines - 1, 0)
