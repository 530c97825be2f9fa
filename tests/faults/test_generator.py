import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle.faults.errors import FaultError
from recycle.faults.generator import FailureModel, calibrated, generate, statistics_of
from recycle.faults.outages import NodeOutage, Outages, load_outages

REAL = load_outages("language-model-cluster")


def test_the_shipped_trace_is_the_published_one():
    facts = statistics_of(REAL)
    # Of the 231 nodes and 584 faults that are in the file, 9 and 14 have faults that end as they start; 2 overlap.
    assert (REAL.nodes, REAL.seconds, len({entry.node for entry in REAL.entries})) == (400, 349 * 86_400, 222)
    assert len(REAL.entries) == 568
    assert facts.rate == pytest.approx(4.1e-3, rel=0.02)
    assert facts.gap_variation == pytest.approx(1.76, rel=0.03)
    assert facts.down == pytest.approx(9.26 / 400, rel=0.01)


def test_what_is_generated_is_like_what_it_was_calibrated_on():
    facts, model = statistics_of(REAL), calibrated(REAL)
    # Thirty traces of a year each, so that the test is of the model and not of one seed.
    years = [statistics_of(generate(model, REAL.nodes, REAL.seconds, seed)) for seed in range(30)]
    tolerances = {
        "rate": 0.05,
        "gap_mean": 0.05,
        "gap_median": 0.2,
        "gap_variation": 0.1,
        "simultaneous": 0.15,
        "repair_median": 0.1,
        "repair_mean": 0.2,
        "down": 0.2,
    }
    for field, tolerance in tolerances.items():
        mean = sum(getattr(year, field) for year in years) / len(years)
        assert mean == pytest.approx(getattr(facts, field), rel=tolerance), field


def test_a_poisson_process_has_gaps_that_vary_as_much_as_their_mean():
    facts = statistics_of(generate(FailureModel(rate=0.1), 1000, 100 * 86_400, 1))
    assert facts.gap_variation == pytest.approx(1, abs=0.05)


def test_racks_fail_together():
    outages = generate(FailureModel(rate=0.01, simultaneous=0.8, rack=4), 400, 100 * 86_400, 1)
    together = {}
    for entry in outages.entries:
        together.setdefault(entry.start, set()).add(entry.node // 4)
    assert all(len(racks) == 1 for racks in together.values())
    assert len(together) < len(outages.entries)


@given(st.integers(1, 1000), st.integers(0, 3))
def test_a_resampled_trace_is_legal_and_has_the_rate(nodes, seed):
    outages = REAL.resampled(nodes, seed)
    by_node = {}
    for node, start, end in outages.entries:
        assert 0 <= node < nodes
        assert 0 <= start < end <= outages.seconds
        by_node.setdefault(node, []).append((start, end))
    assert list(outages.entries) == sorted(outages.entries, key=lambda entry: entry.start)
    for spans in by_node.values():
        spans.sort()
        assert all(one[1] <= later[0] for one, later in itertools.pairwise(spans))


@given(st.integers(1, REAL.nodes), st.integers(0, 100))
def test_the_first_places_are_the_same_however_many_are_taken(nodes, seed):
    all_places = REAL.resampled(REAL.nodes, seed).entries
    assert sorted(REAL.resampled(nodes, seed).entries) == sorted(each for each in all_places if each.node < nodes)


@given(st.floats(0.01, 1e7), st.lists(st.floats(0, 1), unique=True, max_size=6), st.integers(0, 1000))
def test_outages_that_touch_or_last_throughout_do_not_overlap_when_a_trace_is_turned(seconds, cuts, seed):
    times = sorted({0.0, seconds, *(cut * seconds for cut in cuts)})
    outages = Outages("x", 1, seconds, tuple(NodeOutage(0, *span) for span in itertools.pairwise(times)))
    of_node = {}
    for node, start, end in outages.resampled(5, seed).entries:
        of_node.setdefault(node, []).append((start, end))
    for spans in of_node.values():
        spans.sort()
        assert all(start < end for start, end in spans)
        assert all(one[1] <= later[0] for one, later in itertools.pairwise(spans))
        assert sum(end - start for start, end in spans) == pytest.approx(seconds)


def test_what_is_dead_from_the_start_did_not_fail_in_a_trace():
    outages = Outages("x", 2, 100.0, (NodeOutage(0, 0.0, 5.0), NodeOutage(1, 10.0, 20.0)))
    assert outages.failures_per_second == 0.01


def test_a_resampled_trace_keeps_bursts():
    outages = Outages("x", 4, 100.0, tuple(NodeOutage(node, 10.0, 20.0) for node in range(4)))
    starts = {entry.start for entry in outages.resampled(8, 1).entries if entry.start}
    assert len(starts) == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 0.0}, "rate is 0"),
        ({"rate": 1.0, "simultaneous": 1.0}, "simultaneous is 1"),
        ({"rate": 1.0, "repair_median": 5.0, "repair_mean": 1.0}, "not below the median"),
    ],
)
def test_bad_models(values, message):
    with pytest.raises(FaultError, match=message):
        FailureModel(**values)
