import os
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count

import msgspec
import pytest

from recycle.control.host import claim as claims
from recycle.control.host import waiting_notice
from recycle.control.host.claim import HeldClaim, find_claim
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.control.store.etcd_store import EtcdStore
from recycle.runtime.launch.meet.claiming import claimed
from recycle.runtime.launch.meet.start import Start
from recycle.threads import NoneLeft

SILENCE = 3.0
RENEWAL = 0.1


@pytest.fixture(autouse=True)
def renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim is renewed so late, however busy the machine is, that it is taken for one that was left."""
    monkeypatch.setattr(claims, "RENEWAL", RENEWAL)


def test_a_name_is_claimed_once_and_free_again_after_the_run(keys: EtcdCluster) -> None:
    claim = HeldClaim(keys, "mine", SILENCE)
    assert find_claim(keys, "mine", 120) == claim.cluster
    EtcdStore(claim.cluster).set("a", b"1")
    for attempt in (lambda: HeldClaim(keys, "other", SILENCE), lambda: find_claim(keys, "other", 120)):
        with pytest.raises(ControlError, match=rf"a run named '{keys.run}' goes on there; give this one another name"):
            attempt()
    held = EtcdStore(claim.cluster)
    held.set("view", b"1")
    claim.release()
    assert EtcdStore(keys).newest_change() == 0
    # Who was cut off meanwhile does not take the store for an empty one.
    for expected in (b"", b"1"):
        with pytest.raises(StoreLost, match="has ended"):
            held.compare_set("view", expected, b"2")
    # And who is slow to hear of the end leaves nothing behind.
    lates = (
        held.clone,
        lambda: held.keep_first({"death/W0_0#0": b"3"}),
        lambda: held.set("left/2", b"0"),
        lambda: held.exchange({"beat/0": b"9"}, ["view"]),
        lambda: held.append("alarms", b"4"),
    )
    for late in lates:
        with pytest.raises(StoreLost, match="has ended"):
            late()
    assert EtcdStore(keys).newest_change() == 0
    again = HeldClaim(keys, "other", SILENCE)
    assert EtcdStore(again.cluster).get("a") is None
    again.release()


def test_others_find_a_claim_once_its_keys_take_what_they_write(
    keys: EtcdCluster, eventually: Callable[[Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_notice, "FIRST", 0.0)
    store = EtcdStore(keys)
    found: list[str] = []
    said: list[str] = []

    def find() -> None:
        cluster = find_claim(keys, "mine", 120, said.append)
        EtcdStore(cluster).set("hello", b"1")
        found.append(cluster.scope)

    other = threading.Thread(target=find)
    other.start()
    # It has seen that there is none.
    eventually(lambda: said)
    store.set("claim", b'{"scope":"new","origin":"mine","renewed":0}')
    time.sleep(0.5)
    assert other.is_alive()
    store.set("new/open", b"")
    other.join(60)
    assert found == ["new"]


def test_what_a_run_has_left_that_was_killed_is_taken_over(keys: EtcdCluster) -> None:
    store = EtcdStore(keys)
    store.set("claim", b'{"scope":"old","origin":"mine","renewed":7}')
    store.set("old/death/W0_0#0", b"1")
    with pytest.raises(ControlError, match=r"the first process has not begun run"):
        find_claim(keys, "mine", 0.5)
    claim = HeldClaim(keys, "mine", 0.5)
    assert store.get("old/death/W0_0#0") is None
    assert claim.cluster.scope != "old"
    claim.release()


def test_a_run_whose_first_process_is_gone_is_still_a_run_and_may_have_it_back(
    keys: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EtcdStore(keys)
    stale = b'{"scope":"old","origin":"mine","renewed":7}'
    store.set("claim", stale)
    store.set("old/open", b"")
    beats, sleep_well, own = count(1), time.sleep, os.getpid()

    def sleep(seconds: float) -> None:
        if os.getpid() == own:
            store.set("old/beat/W1_0#0", str(next(beats)).encode())
        else:
            # The process that renews the claim.
            sleep_well(seconds)

    with monkeypatch.context() as patch:
        patch.setattr("recycle.control.host.claim.time.sleep", sleep)
        for origin, returns in (("other", True), ("mine", False)):
            with pytest.raises(ControlError, match=r"goes on there"):
                HeldClaim(keys, origin, SILENCE, returns=returns)
        assert store.get("claim") == stale
        claim = HeldClaim(keys, "mine", SILENCE, returns=True)
    # It is renewed again, so that others find it, and nobody else is the first process.
    assert find_claim(keys, "mine", 120) == claim.cluster
    assert claim.cluster.scope == "old"
    with pytest.raises(ControlError, match=r"goes on there"):
        HeldClaim(keys, "mine", SILENCE, returns=True)
    # Those who train outlive it again.
    claim.release(over=False)
    assert store.get("old/open") == b""
    claim = HeldClaim(keys, "mine", 0.1)
    claim.release()
    assert store.newest_change() == 0


@pytest.mark.parametrize("ending", [KeyboardInterrupt, GeneratorExit])
def test_a_first_process_that_a_signal_ends_leaves_the_keys_to_those_that_go_on(
    keys: EtcdCluster, ending: type[BaseException]
) -> None:
    held = claimed(keys, Start(0, 2, "", "first", 5), "", SILENCE, 1.0, print)
    cluster = held.__enter__()
    EtcdStore(cluster).set("open", b"")
    assert not held.__exit__(ending, ending(), None)
    assert EtcdStore(cluster).get("open") == b""


def test_nobody_waits_for_etcd_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recycle.control.host.claim.SOON", 0.1)
    monkeypatch.setattr("recycle.control.host.claim.PATIENCE", 0.2)
    nobody = EtcdCluster((("127.0.0.1", 1),))
    for attempt in (partial(HeldClaim, nobody, "mine", SILENCE), partial(find_claim, nobody, "mine", 120)):
        said: list[str] = []
        with pytest.raises(ControlError, match=r"store: etcd at 127.0.0.1:1 does not answer: .*see whether it runs"):
            attempt(say=said.append)
        assert said == ["waits for etcd at 127.0.0.1:1, which does not answer yet"]


def test_etcd_that_refuses_is_not_waited_for(keys: EtcdCluster) -> None:
    said: list[str] = []
    stranger = msgspec.structs.replace(keys, user="somebody", password="nothing")
    with pytest.raises(ControlError, match=r"store: .*it asks for no user and no password"):
        HeldClaim(stranger, "mine", SILENCE, say=said.append)
    assert not said


def test_etcd_that_is_lost_while_a_run_starts_is_one_line(keys: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise StoreLost("etcd does not answer")

    EtcdStore(keys).set("claim", b"of another one")
    for method, attempt in (
        ("get", lambda: find_claim(keys, "mine", 120)),
        ("newest_change", lambda: HeldClaim(keys, "mine", SILENCE)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(EtcdStore, method, lost)
            with pytest.raises(ControlError, match="store: etcd does not answer"):
                attempt()


def test_a_claim_for_whose_renewal_there_is_no_process_is_one_line_and_leaves_nothing(
    keys: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise NoneLeft("processes")

    monkeypatch.setattr(claims, "fork_below", refuse)
    with pytest.raises(ControlError, match=r"^the system gives no more processes: raise ulimit -u"):
        HeldClaim(keys, "mine", SILENCE)
    assert EtcdStore(keys).newest_change() == 0


def test_of_another_releases_claim_it_is_said_or_it_is_taken_over(
    keys: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_notice, "FIRST", 0.0)
    store = EtcdStore(keys)
    store.set("claim", b'{"begun":"otherwise"}')
    with pytest.raises(ControlError, match=rf"run '{keys.run}' was begun there by another release: install the same"):
        # It is renewed once it was seen.
        find_claim(keys, "mine", 120, lambda _: store.set("claim", b'{"begun":"again"}'))
    # Nobody renews it.
    claim = HeldClaim(keys, "mine", 0.5)
    assert find_claim(keys, "mine", 120) == claim.cluster
    claim.release()


@pytest.mark.parametrize("is_carried_out", [False, True])
def test_a_claim_is_renewed_again_after_etcd_was_lost(
    keys: EtcdCluster,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[[Callable[[], object]], None],
    is_carried_out: bool,
) -> None:
    own, calls = os.getpid(), count(1)

    class Lost(EtcdStore):
        def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
            is_lost = os.getpid() != own and next(calls) == 2
            found = b"" if is_lost and not is_carried_out else super().compare_set(key, expected, desired)
            if is_lost:
                raise StoreLost("etcd was away for 8 s")
            return found

    monkeypatch.setattr(claims, "EtcdStore", Lost)
    claim = HeldClaim(keys, "mine", SILENCE)
    store = EtcdStore(keys)
    eventually(lambda: msgspec.json.decode(store.get("claim") or b"{}").get("renewed", 0) > 4)
    claim.release()


def test_a_claim_that_etcd_has_lost_is_made_again_unless_others_have_taken_the_name(
    keys: EtcdCluster, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    claim, store = HeldClaim(keys, "mine", SILENCE), EtcdStore(keys)
    store.delete("claim")
    eventually(lambda: store.get("claim") is not None)
    assert find_claim(keys, "mine", 120) == claim.cluster
    other = b'{"scope":"new","origin":"other","renewed":0}'
    store.set("claim", other)
    time.sleep(3 * RENEWAL)
    assert store.get("claim") == other
    claim.release()


@pytest.mark.parametrize(("rank", "scheme", "count"), [(0, "etcd", 1), (0, "etcds", 0), (1, "etcd", 0)])
def test_that_a_password_goes_over_the_network_in_clear_is_said_once(rank: int, scheme: str, count: int) -> None:
    said: list[str] = []
    start = Start(rank, 2, "", "host0", 29500)
    etcd = EtcdCluster.parse(f"{scheme}://me:secret@nowhere.invalid")
    with pytest.raises((ControlError, StoreLost)), claimed(etcd, start, "", 1.0, 0.0, said.append):
        pass
    assert [each.partition(":")[0] for each in said].count(
        "etcd's password goes over the network in clear, for anybody who listens"
    ) == count
