import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproduce import survival, survival_bound
from recycle.state.directory import place_copies


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_groups_never_fall_below_geminis_bound(groups, copies, lost):
    hosts = groups * copies
    counted = survival(hosts, place_copies(hosts, copies), min(lost, hosts))
    assert counted >= survival_bound(hosts, copies, min(lost, hosts)) - 1e-12


def test_what_gemini_prints_and_where_counting_gives_more():
    placed = place_copies(16, 2)
    assert [round(survival(16, placed, lost), 3) for lost in range(1, 5)] == [1.0, 0.933, 0.8, 0.615]
    assert round(survival_bound(16, 2, 4), 3) == 0.6
    # Four hosts in two pairs: two of the six pairs of failures lose everything.
    assert survival(4, place_copies(4, 2), 2) == pytest.approx(2 / 3)


@given(st.integers(1, 40), st.integers(1, 5))
def test_groups_and_a_ring_of_the_rest(hosts, copies):
    copies = min(copies, hosts)
    placed = place_copies(hosts, copies)
    assert all(holders[0] == host and len(set(holders)) == copies for host, holders in enumerate(placed))
    # All keep as much as they are kept.
    assert all(sum(host in holders for holders in placed) == copies for host in range(hosts))
    in_groups = sum(set(placed[other]) == set(holders) for holders in placed[:1] for other in holders)
    assert in_groups == copies or hosts < 2 * copies
