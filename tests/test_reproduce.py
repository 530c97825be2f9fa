import pytest

from benchmarks.oobleck_artifact import TRACES, RemovalTrace, VarunaSystem, oobleck_system
from benchmarks.reproduce import Figure, reproduce
from recycle.study.constants import MEASURED


@pytest.fixture(scope="module")
def figures():
    return reproduce()


@pytest.mark.long
def test_every_published_table_is_reproduced(figures):
    assert [figure for figure in figures if not figure.holds] == []
    held = [figure for figure in figures if figure.tolerance is not None]
    # Table 2's rows of Bamboo and Oobleck, the artifact's of Varuna, three splits of time, and Gemini.
    assert len(held) >= 7 * 3 + 5 * 3 + 12 + 5


def test_the_retention_of_recycles_trace_is_printed_for_both_numbers_of_micro_batches(figures):
    of_trace = [figure for figure in figures if figure.table.startswith("ReCycle")]
    for micro_batches in (6, 12):
        by_live = [figure.computed for figure in of_trace if figure.what.startswith(f"M {micro_batches}, 2")]
        assert by_live[0] == 1
        assert all(0 < share <= 1 for share in by_live)


def test_a_figure_that_is_off_does_not_hold():
    assert Figure("t", "w", 1.0, 1.01, 0.01).holds
    assert not Figure("t", "w", 1.0, 1.02, 0.01).holds
    assert Figure("t", "w", 1.0, 5.0).holds


def test_without_losses_both_systems_train_at_their_throughput():
    trace = RemovalTrace(10**8, (1,))
    model = MEASURED[0]
    assert oobleck_system(model).run(trace).throughput == pytest.approx(model.oobleck[0], rel=1e-3)
    assert VarunaSystem(model).run(trace).throughput < model.varuna[0]


def test_more_losses_cost_more():
    for model in MEASURED:
        rates = [oobleck_system(model).run(TRACES[rate]).throughput for rate in ("6h", "1h", "10m")]
        assert rates == sorted(rates, reverse=True)
