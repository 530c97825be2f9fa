"""Without which host a run goes on where no data comes through between two of them."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from recycle.control.membership.cut_links import host_to_leave_out

HOSTS = ("host1", "host2", "host3", "host4")
PAIRS = st.sets(st.sampled_from([frozenset(each) for each in combinations((*HOSTS, "elsewhere"), 2)]))


def anybody(_):
    return True


def test_of_two_hosts_the_first_one_stays():
    assert host_to_leave_out([frozenset({"host2", "host3"})], HOSTS, anybody) == "host3"
    assert host_to_leave_out([frozenset({"host2", "host3"})], HOSTS, lambda host: host != "host3") == "host2"
    assert host_to_leave_out([frozenset({"host2", "host3"})], HOSTS, lambda _: False) is None


def test_a_host_that_none_of_the_others_reaches_goes_rather_than_one_of_them():
    assert host_to_leave_out([frozenset({"host1", "host2"}), frozenset({"host2", "host3"})], HOSTS, anybody) == "host2"


@given(PAIRS, st.sets(st.sampled_from(HOSTS)))
def test_a_host_goes_that_has_a_broken_link_and_without_which_the_others_have_everything(broken, dispensable):
    known = [pair for pair in broken if pair <= set(HOSTS)]
    chosen = host_to_leave_out(broken, HOSTS, dispensable.__contains__)
    could = {host for pair in known for host in pair} & dispensable
    assert (chosen is None) == (not could)
    if chosen is not None:
        counts = {host: sum(host in pair for pair in known) for host in could}
        assert chosen in could
        assert counts[chosen] == max(counts.values())
