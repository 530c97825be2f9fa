import pytest

from harness.examples import paper_job
from recycle.faults.outages import NodeOutage, Outages
from recycle.study.advise import advise
from recycle.study.compare import StudySetting
from recycle.study.rates import Ground

DAYS = 86_400.0
TRACE = Outages(
    "test", 20, 100 * DAYS, tuple(NodeOutage(node, node * DAYS, (node + 40) * DAYS) for node in range(1, 20))
)


@pytest.fixture(scope="module")
def choices():
    return advise(StudySetting(Ground(paper_job(limit=6, released=0), 10.0, 16, 1e-6), TRACE, (), 1))


def of(choices, topic):
    return {each.choice: each for each in choices if each.topic.startswith(topic)}


def test_every_choice_has_its_alternatives(choices):
    for topic in ("memory limit", "micro-batches", "spare servers", "copies in memory", "rank order"):
        alternatives = of(choices, topic).values()
        assert len(alternatives) >= 2
        (present,) = (each for each in alternatives if each.is_present)
        assert present.saved == 0
        for each in alternatives:
            assert each.saved == pytest.approx(present.lost - each.lost)


def test_more_memory_saves_and_less_costs(choices):
    limits = of(choices, "memory limit")
    assert limits["10"].lost <= limits["6"].lost <= limits["4"].lost


def test_other_numbers_of_micro_batches_are_measured_by_the_jobs_own_throughput(choices):
    numbers = of(choices, "micro-batches")
    # Half as many have a larger share of bubbles, which fill with the work of the dead but not for nothing.
    assert numbers["3"].lost > numbers["6"].lost


def test_what_is_not_built_says_so(choices):
    assert [each.model_only for each in of(choices, "copies").values()] == [False, True]
