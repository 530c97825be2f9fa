"""What the loss of one host would end, or hold up."""

import pytest

from recycle.runtime.launch.supervise.risks import risks, stages_on_one_host

STAGES = [(0,), (1,), (0,), (1,)]


def test_stages_whose_servers_are_all_on_one_host():
    assert stages_on_one_host(STAGES, ["a", "a", "b", "b"]) == {}
    assert stages_on_one_host(STAGES, ["a", "b", "a", "b"]) == {0: "a", 1: "b"}
    assert stages_on_one_host(STAGES, ["a", "a", "a", "b"]) == {0: "a"}
    # Where there is one host, everybody knows.
    assert stages_on_one_host(STAGES, ["a"] * 4) == {}
    # A server of two ranks dies with either.
    assert stages_on_one_host([(0,)] * 4, ["a", "b", "b", "c"], 2) == {0: "b"}
    assert stages_on_one_host([(0,)] * 4, ["a", "a", "b", "b"], 2) == {}
    # One that pipelines cut at different places holds several chunks.
    assert stages_on_one_host([(0, 1), (2,), (0,), (1, 2)], ["a", "a", "b", "a"]) == {1: "a", 2: "a"}


@pytest.mark.parametrize(("hosts", "etcd", "said"), [("aa", False, 0), ("ab", True, 0), ("ab", False, 1)])
def test_that_the_store_is_on_one_host_is_said_where_there_are_others(hosts, etcd, said):
    found = risks(list(hosts), [(0,), (0,)], 1, etcd=etcd)
    assert [each.startswith("the store is on a, whose loss ends the run") for each in found] == said * [True]
