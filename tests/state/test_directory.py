from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory_store import MemoryStore
from recycle.control.board import keys
from recycle.control.board.joinfile import new_token
from recycle.job import Server
from recycle.state.channel import HERE
from recycle.state.directory import KeeperDirectory, KeeperHome
from recycle.state.errors import StateError
from recycle.state.redundancy import Redundancy

HOMES = tuple(KeeperHome(f"host{number}", f"10.0.0.{number}", 2000) for number in range(3))
ON = {"W0_0": 0, "W1_0": 0, "W0_1": 1, "W1_1": 2}
DIRECTORY = KeeperDirectory(HOMES, Redundancy(1, 2), ON)


def test_who_has_the_token_reads_it_and_what_a_stranger_writes_counts_as_not_there():
    store, token = MemoryStore(), new_token()
    assert KeeperDirectory.read(store, token) is None
    DIRECTORY.tell(store, token)
    assert KeeperDirectory.read(store, token) == DIRECTORY
    store.set(keys.KEEPERS, b"x" * 100)
    assert KeeperDirectory.read(store, token) is None


def test_a_place_is_taken_once_and_only_in_the_directory_that_was_read():
    store, token = MemoryStore(), new_token()
    first, second = (KeeperHome(f"spare{number}", f"10.0.1.{number}", 2000) for number in range(2))
    assert not DIRECTORY.replace(1, first, store, token)
    DIRECTORY.tell(store, token)
    assert DIRECTORY.replace(1, first, store, token)
    assert not DIRECTORY.replace(1, second, store, token)
    assert KeeperDirectory.read(store, token) == KeeperDirectory((HOMES[0], first, HOMES[2]), Redundancy(1, 2), ON)


def test_a_server_is_kept_by_its_host_first_and_one_that_came_later_as_its_peers():
    assert DIRECTORY.keepers_of(Server(0, 1)) == [HOMES[1], HOMES[2]]
    assert DIRECTORY.keepers_of(Server(2, 0)) == DIRECTORY.keepers_of(Server(0, 0))
    # A ring of three: each host has its own parts, and those of the one before it.
    assert DIRECTORY.stages() == [{0, 1}, {0, 1}, {1}]


@given(st.data())
def test_what_parity_survives_is_that_of_enumeration(data):
    redundancy = data.draw(
        st.sampled_from([Redundancy(1, 2), Redundancy(2, 3), Redundancy(3, 4), Redundancy(2, 4), Redundancy(1, 1)])
    )
    count = data.draw(st.integers(redundancy.pieces, 8))
    homes = tuple(KeeperHome(f"host{number}", f"10.0.0.{number}", 2000) for number in range(count))
    on = {f"W{pipeline}_{stage}": data.draw(st.integers(0, count - 1)) for pipeline in range(3) for stage in range(2)}
    directory = KeeperDirectory(homes, redundancy, on)
    placed = directory.place()

    def survives(lost):
        for stage in range(2):
            hosts = [host for name, host in on.items() if name.endswith(str(stage))]
            live = any(host not in lost for host in hosts)
            kept = all(len({*placed[host]} - lost) >= redundancy.needed for host in hosts)
            if not live and not kept:
                return False
        return True

    for lost in range(1, count + 1):
        whichever = all(survives(set(each)) for each in combinations(range(count), lost))
        assert whichever == (lost <= directory.survived)


@given(st.data())
def test_who_keeps_whose_parts_does_not_depend_on_the_order_of_ranks(data):
    pipelines, stages = data.draw(st.integers(2, 4)), data.draw(st.integers(2, 4))
    redundancy = data.draw(st.sampled_from([Redundancy(1, 2), Redundancy(2, 3), Redundancy(3, 4)]))
    servers = [f"W{pipeline}_{stage}" for pipeline in range(pipelines) for stage in range(stages)]
    homes = [KeeperHome(f"of {server}", "", 2000) for server in servers]
    order = data.draw(st.permutations(range(len(servers))))
    by_pipelines, other = (
        KeeperDirectory(
            tuple(homes[each] for each in places), redundancy, {servers[each]: n for n, each in enumerate(places)}
        )
        for places in (range(len(servers)), order)
    )
    for server in map(Server.parse, servers):
        assert other.keepers_of(server) == by_pipelines.keepers_of(server)


def test_two_pipelines_survive_the_loss_of_a_stages_hosts_where_hosts_follow_the_stages():
    homes = tuple(KeeperHome(f"host{number}", f"10.0.0.{number}", 2000) for number in range(4))
    directory = KeeperDirectory(homes, Redundancy(1, 2), {"W0_0": 0, "W1_0": 1, "W0_1": 2, "W1_1": 3})
    assert directory.place() == ((0, 2), (1, 3), (2, 0), (3, 1))
    assert directory.survived == 2


def test_no_copy_of_a_server_with_ranks_on_two_hosts_is_on_its_second_one():
    """Where a server begins is its host."""
    homes = tuple(KeeperHome(f"host{number}", f"10.0.0.{number}", 2000) for number in range(4))
    directory = KeeperDirectory(homes, Redundancy(1, 2), {"W0_0": 0, "W0_1": 2})
    assert directory.place() == ((0, 2), (1, 3), (2, 0), (3, 1))


def test_as_many_hosts_as_pieces_are_needed():
    with pytest.raises(StateError, match=r"parity=3\+1: it takes 4 hosts, and this run has 3"):
        KeeperDirectory(HOMES, Redundancy(3, 4), ON).place()


def test_its_own_host_reaches_a_keeper_by_name():
    assert HOMES[1].reach("10.0.0.1") == HERE
    assert HOMES[1].reach("10.0.0.2") == ("10.0.0.1", 2000)
    assert HOMES[1].name("10.0.0.2") == "the keeper of host1 (10.0.0.1)"
