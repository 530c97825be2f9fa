"""Recovery over a transport that never lets go by itself, and over NCCL where processes are killed.

Samples of what benchmarks/stand_in.py does at length.
"""

import pytest

from harness.library_kills import LibraryKills
from harness.stand_in_library import lacking
from harness.stand_in_run import StandInRun


@pytest.mark.parametrize("one_queue", [False, pytest.param(True, marks=pytest.mark.long)])
def test_servers_die_and_come_back_and_no_sum_is_wrong(one_queue):
    outcome = StandInRun(seed=4, one_queue=one_queue, patience=200.0).run(deaths=12)
    assert outcome.deaths == 12
    assert outcome.second > 0
    assert outcome.sums >= 6 * outcome.iterations // 2


@pytest.mark.skipif(bool(lacking()), reason=lacking())
@pytest.mark.parametrize("one_queue", [False, True])
def test_views_are_made_anew_whenever_a_process_is_killed(one_queue):
    outcome = LibraryKills(seed=1, one_queue=one_queue, patience=100.0).run(kills=8)
    assert outcome.compared > 0
    assert outcome.unmade > 0
