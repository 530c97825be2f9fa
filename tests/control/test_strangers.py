"""What who lacks the token can make of the store: nothing that ends anybody, and nothing that counts twice."""

import itertools
from base64 import b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.examples import paper_job
from harness.memory_store import MemoryStore
from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.membership.messages import Death, Description, Opening, Verdict
from recycle.control.membership.view import Member, View
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.control.store.etcd_gateway import Gateway
from recycle.control.store.etcd_store import EtcdStore
from recycle.control.store.store import Store
from recycle.control.store.tcp_store import TorchStore, listen, serve
from recycle.runtime.recover.store_connection import StoreProbe

TOKEN = "token"
A, B = (Member.parse(name) for name in ("W0_0#0", "W0_1#0"))
VIEW = View(3, (A, B))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def board(store: MemoryStore) -> Board:
    return Board(store, TOKEN)


def spoil(store: Store, key: str, content: bytes | None) -> None:
    """Do what a stranger does to a key: write something, or take it away."""
    store.delete(key) if content is None else store.set(key, content)


def verdict(epoch: int) -> Verdict:
    return Verdict(epoch, (str(A), str(B)), epoch)


@pytest.mark.parametrize("attack", ["deleted", "garbage", "older"])
def test_the_newest_verdict_is_put_back_by_who_has_read_it(store: MemoryStore, board: Board, attack: str) -> None:
    board.verdicts.propose(verdict(3))
    contents = {"deleted": None, "garbage": b"garbage", "older": store.get(keys.VIEW)}
    reader = Board(store.clone(), TOKEN)
    board.verdicts.propose(verdict(4))
    assert reader.verdicts.newest() == verdict(4)
    spoil(store, keys.VIEW, contents[attack])
    assert reader.verdicts.newest() == verdict(4)
    assert Board(store.clone(), TOKEN).verdicts.newest() == verdict(4)


@pytest.mark.parametrize("attack", ["deleted", "older"])
def test_an_epoch_has_one_verdict_for_all_who_have_read_it(store: MemoryStore, board: Board, attack: str) -> None:
    board.verdicts.propose(verdict(3))
    older = store.get(keys.VIEW)
    board.verdicts.propose(verdict(4))
    spoil(store, keys.VIEW, None if attack == "deleted" else older)
    assert board.verdicts.propose(Verdict(4, (str(A),), 1)) == verdict(4)
    assert board.verdicts.propose(verdict(5)) == verdict(5)


def test_no_number_is_given_again_to_who_has_died_or_is_in_the_view(store: MemoryStore, board: Board) -> None:
    server = A.server
    assert board.joining.new_incarnation(server) == 1
    first = store.get(keys.incarnation(server))
    assert board.joining.new_incarnation(server) == 2
    board.failures.publish_death(Death(str(Member(server, 2)), "died", "agent", 0.0))
    store.set(keys.incarnation(server), first)
    assert board.joining.new_incarnation(server) == 3
    board.verdicts.propose(Verdict(3, (str(Member(server, 3)),), 0))
    for attack in (first, b"garbage", b"99", None):
        spoil(store, keys.incarnation(server), attack)
        assert board.joining.new_incarnation(server) == 4


def test_a_stranger_says_neither_that_the_end_is_reached_nor_that_it_is_not(store: MemoryStore, board: Board) -> None:
    sealed = {}
    for member in VIEW.members:
        board.end.reach(View(2, VIEW.members), member)
        sealed[member] = store.get(keys.finished(2, member))
    for member in VIEW.members:
        store.set(keys.finished(3, member), sealed[member])
    store.set(keys.end(3), b"")
    assert not board.end.wait(VIEW, 0.01)
    one, other = Board(store.clone(), TOKEN), Board(store.clone(), TOKEN)
    one.end.reach(VIEW, A)
    for attack in (b"garbage", None):
        spoil(store, keys.finished(3, A), attack)
        assert not one.end.wait(VIEW, 0.01)
    other.end.reach(VIEW, B)
    assert one.end.wait(VIEW, 0.01)
    assert other.end.wait(VIEW, 0.01)


def test_what_lasts_is_put_back(store: MemoryStore, board: Board) -> None:
    description = Description({}, paper_job())
    board.describe(description)
    opening = board.verdicts.open(Opening(0, (str(A), str(B))))
    probe = StoreProbe(1.0)
    probe.require(board)
    for key, attack in itertools.product((keys.RUN, keys.OPENING), (b"garbage", None)):
        spoil(store, key, attack)
        probe.require(board)
        assert board.description() == description
        assert board.verdicts.opening() == opening


def test_a_store_has_lost_nothing_whatever_a_stranger_deletes(store: MemoryStore, board: Board) -> None:
    description = board.describe(Description({}, paper_job()))
    probe = StoreProbe(1.0)
    probe.require(board)
    store.delete_all(lambda _: True)
    probe.require(board)
    assert board.description() == description


def test_notes_are_put_back_once_they_are_missed(store: MemoryStore, board: Board) -> None:
    notes = {"plan": b"a plan", "flags": b"", "epoch": b"3"}
    for name, content in notes.items():
        board.notes.tell(name, content)
    probe = StoreProbe(1.0)
    probe.notes = notes
    for attack, on_asking, name in itertools.product((b"garbage", None), (b"garbage", None), notes):
        spoil(store, keys.note(name), attack)
        spoil(store, keys.WANTED, on_asking)
        probe.require(board)
        assert board.notes.read(name) is None, "nobody has asked"
        board.notes.ask()
        probe.require(board)
        assert {each: board.notes.read(each) for each in notes} == notes
        assert store.get(keys.WANTED) is None


KINDS = st.sampled_from(["epoch/", "home/W0_0#", "gone/W0_0#", "death/", "beat/", ""])


@given(KINDS, st.text(max_size=40))
@example("epoch/", "9" * 5000)
@example("epoch/-", "9" * 5000)
@example("home/W0_0#", "9" * 5000 + "/0")
@example("epoch/", "\u0662")
def test_whatever_strangers_call_their_keys_it_can_be_told_whether_they_are_needed(kind: str, rest: str) -> None:
    keys.is_outlived(kind + rest, 3, keys.Needed.by(VIEW.members, ["host"]))


def require_only_its_own_deleted(store: Store) -> None:
    store.set("epoch/1/alarm", b"")
    store.set("view", b"")
    store.delete_all(lambda key: key.startswith("epoch"))
    assert store.get_many(["epoch/1/alarm", "view"]) == [None, b""]


def test_names_of_strangers_keys_keep_nothing_in_torchs_store_from_being_deleted() -> None:
    served = serve(listen())
    store, whole = (TorchStore("127.0.0.1", served.port, prefix=prefix) for prefix in ("start/members", ""))
    others = ["", "s", "start/members", "start/membersepoch", "start/epoch"]
    for name in others:
        whole.set(name, b"")
    require_only_its_own_deleted(store)
    assert whole.get_many(others) == [b""] * len(others)
    # What is no text cannot be listed. Then all stays as it is.
    store.set("epoch/1/alarm", b"")
    # Torch does not answer a set: only the next call on that connection makes sure that the other one sees it.
    whole.torch_store.set(b"\xff", "")  # type: ignore[arg-type]  # the stubs say str
    whole.get("")
    store.delete_all(lambda _: True)
    assert store.get("epoch/1/alarm") == b""


def test_names_of_strangers_keys_keep_nothing_in_etcd_from_being_deleted(keys: EtcdCluster) -> None:
    store = EtcdStore(keys)
    name = b64encode(keys.prefix.encode() + b"epoch/\xff").decode()
    Gateway(keys).call("kv/put", {"key": name, "value": ""})
    require_only_its_own_deleted(store)
