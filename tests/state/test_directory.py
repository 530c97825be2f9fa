from harness.memory_store import MemoryStore
from recycle.control import keys
from recycle.control.joinfile import new_token
from recycle.job import Server
from recycle.state.directory import KeeperDirectory, KeeperHome
from recycle.state.keeper import keeper_address

HOMES = tuple(KeeperHome(f"host{number}", f"10.0.0.{number}", 2000) for number in range(3))
ON = {"W0_0": 0, "W1_0": 0, "W0_1": 1, "W1_1": 2}
DIRECTORY = KeeperDirectory(HOMES, 2, ON)


def test_who_has_the_token_reads_it_and_what_a_stranger_writes_counts_as_not_there():
    store, token = MemoryStore(), new_token()
    assert KeeperDirectory.read(store, token) is None
    DIRECTORY.tell(store, token)
    assert KeeperDirectory.read(store, token) == DIRECTORY
    store.set(keys.KEEPERS, b"x" * 100)
    assert KeeperDirectory.read(store, token) is None


def test_a_server_is_kept_by_its_host_first_and_one_that_came_later_as_its_peers():
    assert DIRECTORY.keepers_of(Server(0, 1)) == [HOMES[1], HOMES[2]]
    assert DIRECTORY.keepers_of(Server(2, 0)) == DIRECTORY.keepers_of(Server(0, 0))
    # A ring of three: each host has its own parts, and those of the one before it.
    assert [DIRECTORY.stages_at(place) for place in range(3)] == [{0, 1}, {0, 1}, {1}]


def test_what_is_survived_counts_live_peers():
    assert [DIRECTORY.survival(lost) for lost in (1, 3)] == [1, 0]
    # Stage 0 and its copies are on the first two hosts; stage 1 is on the last two, and so are copies of W0_1's part.
    assert DIRECTORY.survival(2) == 1 / 3


def test_its_own_host_reaches_a_keeper_by_name():
    token = new_token()
    assert HOMES[1].reach("10.0.0.1", token) == keeper_address(token)
    assert HOMES[1].reach("10.0.0.2", token) == ("10.0.0.1", 2000)
    assert HOMES[1].name("10.0.0.2") == "the keeper of host1 (10.0.0.1)"
