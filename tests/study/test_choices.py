import msgspec
import pytest

from harness.examples import paper_job
from recycle.faults.outages import NodeOutage, Outages
from recycle.study.choices import SHAPE, SPARE, weigh_choices
from recycle.study.compare import StudySetting
from recycle.study.failures import FailureHistory
from recycle.study.rates import Ground

DAYS = 86_400.0
TRACE = Outages(
    "test", 20, 100 * DAYS, tuple(NodeOutage(node, node * DAYS, (node + 40) * DAYS) for node in range(1, 20))
)


@pytest.fixture(scope="module")
def choices():
    return weigh_choices(
        StudySetting(Ground(paper_job(limit=6, released=0), 10.0, 16, 1e-6), FailureHistory.recorded(TRACE), (), 1)
    )


def of(choices, topic):
    return {each.choice: each for each in choices if each.topic.startswith(topic)}


def test_every_choice_has_its_alternatives(choices):
    for topic in (SHAPE, SPARE):
        alternatives = of(choices, topic).values()
        assert len(alternatives) >= 2
        (present,) = (each for each in alternatives if each.is_present)
        assert present.saved == 0
        for each in alternatives:
            assert each.saved == pytest.approx(present.lost - each.lost)


def test_a_spare_that_is_not_needed_costs_what_it_costs(choices):
    spares = of(choices, SPARE)
    for each in spares.values():
        servers = 12 + int(each.choice)
        assert each.lost == pytest.approx((1 - each.goodput) * servers * 8766)


def test_other_shapes_train_the_same_layers_and_batch():
    job = paper_job(pipelines=4, stages=4, micro_batches=8, limit=8, released=0)
    failures = FailureHistory.random(1e9, 16, 1.0)
    found = weigh_choices(StudySetting(Ground(job, 10.0, 16, 1e-9), failures, (), 1))
    shapes = of(found, SHAPE)
    assert list(shapes) == ["2 x 8 x 16", "4 x 4 x 8", "8 x 2 x 4"]
    # Without failures: M + P - 1 slots of 1 / P of the layers and the step, against the job's own.
    for (pipelines, stages, micro_batches), name in zip(
        ((2, 8, 16), (8, 2, 4)), ("2 x 8 x 16", "8 x 2 x 4"), strict=True
    ):
        assert pipelines * stages == 16
        before = 3 * (8 + 4 - 1) + job.stages[0].optimizer
        after = (3 * (micro_batches + stages - 1) + job.stages[0].optimizer) * 4 / stages
        assert shapes[name].goodput == pytest.approx(before / after, rel=0.01)


def test_the_unit_of_memory_changes_no_choice():
    job = paper_job(pipelines=2, stages=4, micro_batches=8, limit=6, released=0)
    failures = FailureHistory.random(1e6, 8, 1e4)

    def found(unit):
        stages = [msgspec.structs.replace(each, held=unit, limit=6 * unit, state=2 * unit) for each in job.stages]
        ground = Ground(msgspec.structs.replace(job, stages=tuple(stages)), 10.0, 64, 1e-6)
        return weigh_choices(StudySetting(ground, failures, (), 1))

    assert list(of(found(1), SHAPE)) == ["1 x 8 x 16", "2 x 4 x 8", "4 x 2 x 4"]
    assert found(10**10) == found(1)


def test_a_shape_without_the_memory_for_a_micro_batch_is_left_out():
    job = paper_job(pipelines=2, stages=4, micro_batches=8, limit=1, released=0)
    stages = tuple(msgspec.structs.replace(each, state=2) for each in job.stages)
    ground = Ground(msgspec.structs.replace(job, stages=stages), 10.0, 16, 1e-6)
    found = weigh_choices(StudySetting(ground, FailureHistory.random(1e6, 8, 1e4), (), 1))
    assert list(of(found, SHAPE)) == ["1 x 8 x 16", "2 x 4 x 8"]


@pytest.mark.parametrize(("layers", "cost"), [(3200, 1), (32, 2 * 10**11)])
def test_a_job_whose_layers_cannot_be_moved_has_no_other_shapes(layers, cost):
    job = paper_job(pipelines=2, stages=4, micro_batches=8, released=0)
    stages = tuple(msgspec.structs.replace(each, forward=cost) for each in job.stages)
    ground = Ground(msgspec.structs.replace(job, stages=stages), 10.0, layers, 1e-6)
    found = weigh_choices(StudySetting(ground, FailureHistory.random(1e6, 8, 1e4), (), 1))
    assert list(of(found, SHAPE)) == ["2 x 4 x 8"]
