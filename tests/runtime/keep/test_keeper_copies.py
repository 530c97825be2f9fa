"""Two peers of a stage put their parts with real keepers, and whoever comes after them gets the version from there."""

import math
import multiprocessing
import resource
import threading
from contextlib import contextmanager
from itertools import combinations

import msgspec
import pytest
import torch

from harness.local import launch
from harness.ports import free_port
from harness.started import wait_until
from recycle.control.board.joinfile import new_token
from recycle.control.membership.view import SOLE, ServerRank, View
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.keep.keeper_copies import KeeperCopies, KnownKeepers, Snapshot
from recycle.state.channel import HERE
from recycle.state.client import KeeperClient
from recycle.state.errors import KeeperLost
from recycle.state.keeper import listen, serve
from recycle.state.redundancy import Redundancy

FORK = multiprocessing.get_context("fork")
PEERS = [Server(0, 1), Server(1, 1)]
ALL = [Server(0, 0), Server(1, 0), *PEERS]


class Stage:
    """Versions that are told apart by every byte, of tensors of all kinds."""

    shards = None

    def __init__(self, newest=0, spoiled=0):
        self.newest, self.undone, self._spoiled = newest, 0, spoiled

    def state(self):
        value = self.newest + self._spoiled
        # The peers need not have them in the same order.
        return {
            "parameter/weight": torch.arange(300_001, dtype=torch.float32) * (value + 1),
            "optimizer/step/weight": torch.tensor(float(value)),
            "parameter/half": torch.full((3, 5), value + 0.5, dtype=torch.bfloat16),
            "optimizer/bound/weight": torch.tensor(value, dtype=torch.int64),
            "flag": torch.tensor([True, value % 2 == 0]),
        }

    def spoil(self):
        self._spoiled = 100

    def correct(self):
        self._spoiled = 0
        self.undone += 1


def same(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


class Peer:
    """One server of the stage."""

    def __init__(self, keepers, server, epoch=0, newest=0, redundancy=None, rank=SOLE):
        self.stage, self.warnings, self.kept = Stage(newest, 100 * rank.number), [], []
        self.view = View.among(ALL, epoch)
        redundancy = redundancy or Redundancy(1, len(keepers))
        known = KnownKeepers(keepers, redundancy, near=keepers[0].name)
        told = self.tell, self.tell_kept
        self.copies = KeeperCopies(lambda: known, server, 2, self.stage, lambda: self.view, *told, rank)

    def tell(self, kind, text):
        if kind == "warning":
            self.warnings.append(text)

    def tell_kept(self, part, keepers):
        self.kept.append((part.version, part.number, part.parts, *keepers))

    def compute(self):
        self.copies.before(self.stage.newest, Instruction(Op.F, 1))

    def reduce(self):
        self.copies.before(self.stage.newest, Instruction(Op.REDUCE, 1))

    def iterate(self, iterations=1):
        for _ in range(iterations):
            self.compute()
            self.reduce()
            self.stage.newest += 1


@contextmanager
def serving(*names):
    """Keepers of some hosts."""
    listeners, clients = [], []
    for name in names:
        token = new_token()
        listeners.append(listen(token))
        threading.Thread(target=serve, args=([listeners[-1]], token, 1 << 26), daemon=True).start()
        clients.append(KeeperClient(HERE, token, name))
    yield clients
    for each in (*listeners, *clients):
        each.close()


@pytest.fixture
def keepers():
    """Two hosts' keepers."""
    with serving("near", "far") as clients:
        yield clients


class Lost:
    """The keeper of a host that is gone."""

    def __init__(self, name):
        self.name, self.asked = name, 0

    def copies(self):
        self.asked += 1
        raise KeeperLost("no keeper can be reached")


def test_what_both_have_put_is_the_version(keepers):
    one, other = [Peer(keepers, each) for each in PEERS]
    one.iterate(3)
    other.iterate(2)
    joiner = Peer(keepers, PEERS[0])
    # Of stage 0, which puts nothing here, nothing can be had.
    assert joiner.copies.find_versions() == ((), (0, 1))
    assert same(joiner.copies.fetch(1), Stage(1).state())
    with pytest.raises(ConnectionLost, match="no keeper has version 2 of stage 1"):
        joiner.copies.fetch(2)
    assert not one.warnings + other.warnings + joiner.warnings
    assert one.kept == [(version, 0, 2, "near", "far") for version in range(3)]
    assert other.kept == [(version, 1, 2, "near", "far") for version in range(2)]


def test_where_servers_have_several_ranks_a_version_is_there_when_all_of_them_have_put_it(keepers):
    ranks = [ServerRank(number, 2) for number in range(2)]
    places = [(server, rank) for server in PEERS for rank in ranks]
    *others, (server, rank) = places
    for each in others:
        Peer(keepers, each[0], rank=each[1]).iterate(2)
    late = Peer(keepers, server, rank=rank)
    late.iterate()
    joiners = [Peer(keepers, PEERS[0], rank=each) for each in ranks]
    for joiner, expected in zip(joiners, (Stage(0), Stage(0, 100)), strict=True):
        assert joiner.copies.find_versions() == ((), (0,))
        assert same(joiner.copies.fetch(0), expected.state())
        with pytest.raises(ConnectionLost, match="no keeper has version 1 of stage 1"):
            joiner.copies.fetch(1)
    late.iterate()
    assert same(joiners[1].copies.fetch(1), Stage(1, 100).state())
    # In another view the first rank has put it again, and the second one has not: it is that of the one before.
    for server in PEERS:
        Peer(keepers, server, epoch=1, newest=1, rank=ranks[0]).compute()
    found = joiners[0].copies.find_versions()[1]
    assert 1 in found
    assert same(joiners[0].copies.fetch(1), Stage(1).state())


def test_the_first_version_of_a_view_is_there_before_anybody_computes(keepers):
    for server in PEERS:
        Peer(keepers, server, newest=4).compute()
    assert Peer(keepers, PEERS[0]).copies.find_versions()[1] == (4,)
    # In the next view it is copied again, by whoever is in it then.
    for server in PEERS:
        peer = Peer(keepers, server, epoch=1, newest=4)
        peer.compute()
    assert same(peer.copies.fetch(4), Stage(4).state())


def test_a_version_that_is_not_known_to_be_right_is_not_there(keepers):
    peers = [Peer(keepers, each) for each in PEERS]
    for each in peers:
        each.iterate()
        each.stage.spoil()
        each.compute()
    assert peers[0].copies.find_versions()[1] == (0,)
    for each in peers:
        # The step was not right, and is made again.
        each.stage.correct()
        each.reduce()
    assert same(peers[0].copies.fetch(1), Stage(1).state())


def test_a_halt_leaves_no_half_of_a_version(keepers):
    peers = [Peer(keepers, each) for each in PEERS]
    for each in peers:
        each.iterate()
        each.compute()
        each.copies.halt()
    assert peers[0].copies.find_versions()[1] == (0,)


class Counting:
    """A keeper that counts what it is told to be right."""

    name, address, is_lost = "near", HERE, False

    def __init__(self):
        self.committed = 0

    def offer(self, part, head, size):
        return self

    def write(self, block):
        pass

    def commit(self, checksum):
        self.committed += 1

    def confirm(self):
        pass

    def give_up(self):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("text", ["parity=3+1", "parity=4+2"])
def test_with_parity_any_hosts_may_be_lost_and_no_bit_is(text):
    redundancy = Redundancy.parse(text)
    with serving(*(f"host{number}" for number in range(redundancy.pieces))) as keepers:
        for server in PEERS:
            # Of another host each, whose keeper has the first piece.
            place = server.pipeline
            Peer([*keepers[place:], *keepers[:place]], server, redundancy=redundancy).iterate(2)
        for lost in combinations(range(redundancy.pieces), redundancy.spare):
            left = [Lost(each.name) if place in lost else each for place, each in enumerate(keepers)]
            joiner = Peer(left, PEERS[0], redundancy=redundancy)
            assert joiner.copies.find_versions()[1] == (0, 1)
            assert same(joiner.copies.fetch(1), Stage(1).state())
        few = [Lost(each.name) if place <= redundancy.spare else each for place, each in enumerate(keepers)]
        assert Peer(few, PEERS[0], redundancy=redundancy).copies.find_versions()[1] == ()
        sizes = {size for each in keepers for _, _, size in map(msgspec.structs.astuple, each.copies())}
        total = sum(each.nbytes for each in Stage().state().values())
        assert max(sizes) <= total / 2 / redundancy.needed + 1


def test_a_keeper_that_was_lost_a_moment_ago_is_asked_again_only_if_a_version_needs_it(keepers):
    for server in PEERS:
        Peer(keepers, server).iterate()
    lost = Lost("far")
    joiner = Peer([keepers[0], lost], PEERS[0])
    assert joiner.copies.find_versions()[1] == (0,)
    joiner.copies._resting = {name: (math.inf, rest) for name, (_, rest) in joiner.copies._resting.items()}
    assert same(joiner.copies.fetch(0), Stage(0).state())
    assert lost.asked == 1
    with pytest.raises(ConnectionLost, match="no keeper has version 1"):
        joiner.copies.fetch(1)
    assert lost.asked == 2


def test_a_keeper_that_has_come_back_elsewhere_gets_the_first_version_of_the_next_view(keepers):
    _, there = keepers
    peer = Peer([KeeperClient(("127.0.0.1", free_port()), "token", there.name)], PEERS[0])
    peer.compute()
    peer.copies._find_keepers = lambda: KnownKeepers([there], Redundancy(1, 1), near=there.name)
    peer.view = View.among(ALL, 1)
    peer.compute()
    assert [each[3:] for each in peer.kept] == [(), (there.name,)]


def test_without_a_keeper_training_goes_on_with_one_warning(monkeypatch):
    token = new_token()
    keeper = KeeperClient(HERE, token, "near")
    peer = Peer([keeper], PEERS[0])
    peer.iterate(5)
    (warning,) = peer.warnings
    assert warning.startswith("the state is not kept in memory by near: no keeper can be reached")
    # Once there is one, it is put again.
    with listen(token) as listener:
        threading.Thread(target=serve, args=([listener], token, 1 << 26), daemon=True).start()
        peer.copies._resting = {name: (0.0, rest) for name, (_, rest) in peer.copies._resting.items()}
        begun = []
        start = Snapshot.__init__
        monkeypatch.setattr(Snapshot, "__init__", lambda *given: (begun.append(given), start(*given))[1])
        peer.iterate()
        keeper.close()
    assert len(begun) == 1
    assert len(peer.warnings) == 1


def test_training_goes_on_where_the_system_gives_a_worker_no_more_memory_for_a_part():
    def body(_):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        peer = Peer([KeeperClient(HERE, token, "near")], PEERS[0])
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
        peer.iterate(2)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        text = "the state is not kept in memory by near: its memory cannot be used: File too large"
        assert [each.partition(";")[0] for each in peer.warnings] == [text]
        peer.copies._resting = {name: (0.0, rest) for name, (_, rest) in peer.copies._resting.items()}
        peer.iterate()
        assert [each[3:] for each in peer.kept] == [(), (), ("near",)]

    token = new_token()
    with listen(token) as listener:
        keeper = FORK.Process(target=serve, args=([listener], token, 1 << 26), daemon=True)
        keeper.start()
    launch(1, body)
    keeper.kill()
    keeper.join()


def test_nothing_is_offered_any_more_once_it_is_given_up():
    offering, given_up, others = threading.Event(), threading.Event(), []

    class Silent(Lost):
        def offer(self, *_):
            others.append(self.name)
            offering.set()
            given_up.wait(60)
            raise KeeperLost("it says nothing")

    copies = (peer := Peer([Lost("a")], PEERS[0])).copies
    given = copies._part(peer.view), copies._version(peer.view)
    snapshot = Snapshot([(0, Silent(name)) for name in "abc"], Redundancy(1, 3), *given)
    offering.wait(60)
    halting = threading.Thread(target=snapshot.give_up)
    halting.start()
    wait_until(snapshot._given_up.is_set)
    given_up.set()
    halting.join()
    assert others == ["a"]


def test_one_keeper_of_two_is_enough(keepers):
    lost = KeeperClient(HERE, new_token(), "lost")
    for server in PEERS:
        peer = Peer([lost, keepers[1]], server)
        peer.iterate()
        assert ["no keeper can be reached" in each for each in peer.warnings] == [True]
    assert same(peer.copies.fetch(0), Stage(0).state())


def test_no_keeper_is_waited_for_before_all_were_told_that_the_part_is_right():
    keepers = [Counting(), Counting()]
    keepers[1].name = "far"

    def confirm():
        assert [each.committed for each in keepers] == [1, 1]

    for each in keepers:
        each.confirm = confirm
    Peer(keepers, PEERS[0]).reduce()
    assert [each.committed for each in keepers] == [1, 1]
