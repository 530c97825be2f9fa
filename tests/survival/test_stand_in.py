"""Recovery over a transport that never lets go by itself: a sample of what benchmarks/stand_in.py does at length."""

import pytest

from harness.stand_in_run import StandInRun


@pytest.mark.parametrize("one_queue", [False, True])
def test_servers_die_and_come_back_and_no_sum_is_wrong(one_queue):
    outcome = StandInRun(seed=4, one_queue=one_queue, patience=200.0).run(deaths=12)
    assert outcome.deaths == 12
    assert outcome.second > 0
    assert outcome.sums >= 6 * outcome.iterations // 2
