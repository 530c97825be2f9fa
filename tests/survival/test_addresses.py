"""Runs over hosts whose names and addresses are unlike those of the other tests: IPv6, and Debian's /etc/hosts."""

import pytest

from harness.hosts import hosts, missing
from harness.started import TRAIN, by_hand, small_run

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

IPV4, IPV6 = "10.77.0.{}/24", "fd77::{}/64"
OWN_NAME = "127.0.1.1"
"""What Debian's /etc/hosts has for the machine's own name."""


def words(folder, *more):
    return small_run(folder / "run", 2, 1, 3, *more)


@pytest.mark.parametrize(
    ("networks", "own_name", "master", "more"),
    [
        ([IPV4], OWN_NAME, "host1", []),
        pytest.param([IPV4, "192.168.77.{}/24"], OWN_NAME, "host1", ["--address", "eth0"], marks=pytest.mark.long),
        pytest.param([IPV6], "", "host1", [], marks=pytest.mark.long),
        ([IPV6], "", "fd77::1", ["--address", "eth0"]),
        pytest.param([IPV6], OWN_NAME, "host1", [], marks=pytest.mark.long),
        ([IPV6, IPV4], "", "host1", []),
    ],
    ids=["debian", "debian-interface", "ipv6", "ipv6-interface", "debian-ipv6", "both"],
)
def test_a_run_finds_its_hosts(networks, own_name, master, more, start, tmp_path):
    with hosts(2, networks=networks, own_name=own_name) as two:
        arguments = [*TRAIN, *words(tmp_path, *more)]
        ranks = [start(arguments, host, by_hand(rank, 2, master, 29500)) for rank, host in enumerate(two)]
        for rank in ranks:
            assert rank.ended() == 0, rank.output
        assert "iteration 3/3" in ranks[0].output


def test_a_host_of_several_addresses_whose_name_says_none_is_told_so_at_once(start, tmp_path):
    with hosts(2, networks=[IPV4, "192.168.77.{}/24"], own_name=OWN_NAME) as two:
        arguments = [*TRAIN, *words(tmp_path)]
        first = start(arguments, two[0], by_hand(0, 2, "host1", 29500))
        assert first.ended() == 2, first.output
        assert "MASTER_ADDR host1: on host1 that is 127.0.1.1, which no other host reaches" in first.output
        assert "give --address an address of this machine" in first.output
        assert "10.77.0.1 (eth0)" in first.output
