"""Views of the transport over NCCL in processes that are killed: a sample of what benchmarks/stand_in.py does."""

import pytest

from harness.library_kills import LibraryKills
from harness.stand_in_library import lacking

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


@pytest.mark.parametrize("one_queue", [False, True])
def test_views_are_made_anew_whenever_a_process_is_killed(one_queue):
    outcome = LibraryKills(seed=1, one_queue=one_queue, patience=100.0).run(kills=8)
    assert outcome.compared > 0
    assert outcome.unmade > 0
