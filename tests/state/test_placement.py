from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproduce import survival_bound
from recycle.state.directory import place_copies, survival


@st.composite
def layouts(draw):
    """Hosts, copies, and the states' holders: copies of each host's, with the live peers that some have as well."""
    hosts = draw(st.integers(1, 20))
    copies = draw(st.integers(1, min(4, hosts)))
    peers = st.sets(st.integers(0, hosts - 1), max_size=3)
    return hosts, copies, [{*holders, *draw(peers)} for holders in place_copies(hosts, copies)]


@given(layouts(), st.integers(0, 4))
def test_the_probability_is_that_of_enumeration(layout, lost):
    hosts, _, states = layout
    lost = min(lost, hosts)
    survived = sum(all(state - set(failed) for state in states) for failed in combinations(range(hosts), lost))
    assert survival(hosts, states, lost) == pytest.approx(survived / comb(hosts, lost), abs=1e-12)


@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 4))
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
    # A ring of pairs is hit by twice as many pairs of failures as groups are.
    ring = [{host, (host + 1) % 16} for host in range(16)]
    assert round(survival(16, ring, 2), 3) == 0.867


def test_a_thousand_hosts_are_counted_at_once():
    assert survival(1000, place_copies(1000, 2), 4) > survival_bound(1000, 2, 4)


@given(st.integers(1, 40), st.integers(1, 5))
def test_groups_and_a_ring_of_the_rest(hosts, copies):
    copies = min(copies, hosts)
    placed = place_copies(hosts, copies)
    assert all(holders[0] == host and len(set(holders)) == copies for host, holders in enumerate(placed))
    # All keep as much as they are kept.
    assert all(sum(host in holders for holders in placed) == copies for host in range(hosts))
    in_groups = sum(set(placed[other]) == set(holders) for holders in placed[:1] for other in holders)
    assert in_groups == copies or hosts < 2 * copies
