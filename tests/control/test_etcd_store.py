"""What etcd adds to the store's contract: members that are lost, users, and keys of several runs."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from harness.etcd import Etcd, await_answer, etcd, missing
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.control.store.etcd_gateway import Gateway, Watch
from recycle.control.store.etcd_store import BATCH, EtcdStore
from tests.control.test_store import each_request

QUOTA = 1 << 24
"""Bytes."""

needs_etcd = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def three() -> Iterator[Etcd]:
    with etcd(3) as served:
        yield served


@needs_etcd
def test_nothing_is_lost_and_nobody_is_told_when_the_leader_dies(three: Etcd) -> None:
    store = EtcdStore(three.cluster)
    for number, kill in enumerate((False, True)):
        store.set("a", f"{number}".encode())
        leader = three.leader()
        (leader.kill if kill else leader.pause)()
        assert store.get("a") == f"{number}".encode()
        store.append("log", b"1")
        assert len(store.entries("log", 0).found) == number + 1
        assert store.clone().compare_set("a", b"0", b"changed") == (b"1" if number else b"changed")
        if not kill:
            leader.go_on()
            await_answer(three.cluster)


@needs_etcd
@pytest.mark.parametrize("how", [EtcdStore.wait, EtcdStore.hear])
def test_a_wait_at_a_member_that_has_fallen_silent_still_ends(
    three: Etcd, how: Callable[[EtcdStore, str, float], bytes | None]
) -> None:
    waiting = EtcdStore(three.cluster, near="127.0.0.1")
    thread = threading.Thread(target=lambda: heard.append(how(waiting, "bells/a", 120)))
    heard: list[bytes | None] = []
    assert how(waiting, "bells/a", 0.2) is None
    (member,) = [each for each in three.members if each.address == waiting._gateway.member]
    thread.start()
    member.pause()
    EtcdStore(three.cluster).set("bells/a", b"1")
    thread.join(120)
    assert heard == [b"1"]


@needs_etcd
def test_to_hear_one_bell_after_the_other_asks_nothing(keys: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = EtcdStore(keys), EtcdStore(keys)
    assert store.hear("epoch/1/bells/call", 0.1) is None
    with monkeypatch.context() as patch:
        patch.setattr(store._bells, "_look", 60.0)
        patch.setattr(store._bells, "_gateway", None)
        for bell in ("call", "W0_0#0", "W0_1#0"):
            other.set(f"epoch/1/bells/{bell}", bell.encode())
            assert store.hear(f"epoch/1/bells/{bell}", 120) == bell.encode()


@needs_etcd
def test_of_a_bell_that_is_set_twice_the_last_value_counts(keys: EtcdCluster) -> None:
    store, other = EtcdStore(keys), EtcdStore(keys)
    assert store.hear("bells/a", 0.1) is None
    for value in (b"1", b"2"):
        other.set("bells/a", value)
    other.set("bells/b", b"3")
    # What is heard is in the order in which it was set.
    assert store.hear("bells/b", 120) == b"3"
    assert store.hear("bells/a", 120) == b"2"


@needs_etcd
def test_a_watch_that_ends_or_is_not_understood_is_begun_again(keys: EtcdCluster) -> None:
    store, other = EtcdStore(keys), EtcdStore(keys)
    for number, spoil in enumerate((lambda watch: watch._connection.sock.shutdown(2), _garble)):
        bell = f"bells/{number}"
        assert store.hear(bell, 0.1) is None
        spoil(store._bells._watch)
        other.set(bell, b"1")
        assert store.hear(bell, 120) == b"1"
        assert store.wait(f"key{number}", 0.1) is None
        spoil(store._waits._watch)
        other.set(f"key{number}", b"1")
        assert store.wait(f"key{number}", 120) == b"1"


@needs_etcd
def test_the_kernel_probes_a_watch_and_gives_it_up_within_seconds(keys: EtcdCluster) -> None:
    store = EtcdStore(keys)
    assert store.hear("bells/a", 0.1) is None
    probed = store._bells._watch._connection.sock
    assert probed.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    idle, interval, count = (probed.getsockopt(socket.IPPROTO_TCP, each) for each in options)
    assert idle + interval * count <= 3


def _garble(watch: Watch) -> None:
    """What has come of a line was cut off."""
    watch._heard = b'{"result": {"events"'


@needs_etcd
def test_what_is_appended_in_one_step_has_one_number_and_a_strangers_word_is_given_as_it_is(keys: EtcdCluster) -> None:
    store = EtcdStore(keys)
    store.append("log", b"1", b"", b"3")
    store.set("log/stranger", b"\xff")
    store.append("log", b"4")
    numbers, entries = zip(*store.entries("log", 0).found, strict=True)
    assert entries == (b"1", b"", b"3", b"\xff", b"4")
    assert [numbers.count(each) for each in numbers] == [3, 3, 3, 1, 1]


@needs_etcd
def test_without_a_majority_every_request_says_so_within_its_patience(three: Etcd) -> None:
    store = EtcdStore(three.cluster, patience=0.3)
    for member in three.members[:2]:
        member.pause()
    # A member finds out after a moment that it has lost the others.
    for request in (*each_request(store), lambda: store.hear("bells/a", 1), lambda: store.peek(["a"])):
        with pytest.raises(StoreLost, match=r"more than half of its members must be alive"):
            request()
    for member in three.members:
        member.kill()
    with pytest.raises(StoreLost, match=r"see whether it runs there"):
        EtcdStore(three.cluster, patience=0.5)


@needs_etcd
def test_a_request_that_is_made_again_is_answered_as_the_first(
    keys: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, interrupted = Gateway.call, []

    def unanswered(gateway, method, request):
        """The first answer is lost."""
        if not interrupted and method == "kv/txn":
            interrupted.append(request)
            call(gateway, method, request)
        return call(gateway, method, request)

    monkeypatch.setattr(Gateway, "call", unanswered)
    assert EtcdStore(keys).compare_set("a", b"", b"mine") == b"mine"
    assert interrupted


@needs_etcd
def test_runs_do_not_see_each_other(keys: EtcdCluster) -> None:
    # The name of one begins the name of the other.
    stores = [EtcdStore(msgspec.structs.replace(keys, run=f"{keys.run}{end}")) for end in ("", "/b", "b")]
    for number, store in enumerate(stores):
        store.set("a", str(number).encode())
    stores[0].delete_all(lambda _: True)
    assert [store.get("a") for store in stores] == [None, b"1", b"2"]


@needs_etcd
def test_what_a_watch_has_heard_of_before_a_wait_is_not_found_by_it(keys: EtcdCluster) -> None:
    store, other = EtcdStore(keys), EtcdStore(keys)
    # From here on the key is watched.
    assert store.wait("a", 0.2) is None
    other.set("a", b"1")
    assert store.wait("a", 120) == b"1"
    other.delete("a")
    assert store.wait("a", 0.5) is None


@needs_etcd
def test_more_keys_than_etcd_takes_in_one_request(keys: EtcdCluster) -> None:
    store = EtcdStore(keys)
    names = [f"epoch/{number:04}" for number in range(4 * BATCH)]
    store.set_many({name: name.encode() for name in names})
    assert store.get_many([*names, "none"]) == [*(name.encode() for name in names), None]
    # Most of what lies between is not asked for.
    wanted = [*names[:BATCH], names[-1]]
    assert store.get_many(wanted) == [name.encode() for name in wanted]
    store.delete_all(lambda key: key != names[7])
    assert [name for name, found in zip(names, store.get_many(names), strict=True) if found] == [names[7]]


@needs_etcd
def test_who_has_not_the_password_gets_one_line_with_a_remedy() -> None:
    with etcd() as served:
        served.demand_password("trainer", "se:cr@t")
        hosts = served.url.partition("://")[2]
        store = EtcdStore(EtcdCluster.parse(f"etcd://trainer:se%3Acr%40t@{hosts}/run"))
        store.set("a", b"1")
        assert store.wait("a", 120) == b"1"
        for who, said in (
            ("", "it asks for a user and a password; give etcd://USER:PASSWORD@"),
            ("trainer:wrong@", "user 'trainer' or the password is wrong"),
        ):
            with pytest.raises(StoreLost, match=said) as caught:
                EtcdStore(EtcdCluster.parse(f"etcd://{who}{hosts}"))
            assert "\n" not in str(caught.value)
            assert "wrong@" not in str(caught.value)
        # Who was let in and is not any more has lost the store, and nothing else.
        Gateway(root(served)).call("auth/user/changepw", {"name": "trainer", "password": "another"})
        with pytest.raises(StoreLost, match="user 'trainer' or the password is wrong"):
            store.get("a")
        Gateway(root(served)).call("auth/user/changepw", {"name": "trainer", "password": "se:cr@t"})
        assert store.get("a") == b"1"


def root(served: Etcd) -> EtcdCluster:
    """With the rights to change users."""
    return msgspec.structs.replace(served.cluster, user="root", password="se:cr@t")


@needs_etcd
def test_of_etcd_that_is_full_it_is_said_what_to_do_and_after_that_it_is_a_store_again() -> None:
    with etcd(quotas=[QUOTA]) as served:
        store = EtcdStore(served.cluster)
        store.set("a", b"1")
        served.fill()
        with pytest.raises(StoreLost, match="a member is full, so it takes no writes; run etcdctl compact"):
            store.set("a", b"2")
        assert store.get("a") == b"1"
        served.make_room()
        store.set("a", b"3")
        assert store.get("a") == b"3"


@needs_etcd
def test_a_start_whose_keys_are_lost_does_not_count_any_more() -> None:
    with etcd() as served:
        cluster = msgspec.structs.replace(served.cluster, run="run", scope="start")
        EtcdStore(msgspec.structs.replace(cluster, scope="")).set("start/open", b"")
        before = EtcdStore(cluster)
        before.set("a", b"1")
        served.members[0].start_anew()
        await_answer(served.cluster)
        for request in (
            lambda: before.get("a"),
            lambda: before.peek(["a"]),
            lambda: before.set("a", b"2"),
            before.clone,
        ):
            with pytest.raises(StoreLost, match=r"has no keys of run 'run': .* etcd came back without its data"):
                request()


@needs_etcd
def test_members_of_another_cluster_do_not_count(three: Etcd) -> None:
    meant = msgspec.structs.replace(three.cluster, identity=EtcdStore(three.cluster).identity)
    EtcdStore(meant).set("a", b"1")
    with etcd() as other:
        assert EtcdStore(other.cluster).identity != meant.identity
        mixed = msgspec.structs.replace(meant, members=(*other.cluster.members, *meant.members))
        for _ in range(4):
            assert EtcdStore(mixed).get("a") == b"1"
        strange = msgspec.structs.replace(meant, members=other.cluster.members)
        with pytest.raises(StoreLost, match=r"is a member of cluster \d+, and the run is in \d+; start the members"):
            EtcdStore(strange, patience=0.3)


@needs_etcd
@pytest.mark.skipif(shutil.which("openssl") is None, reason="this takes openssl")
def test_connections_are_encrypted_and_certificates_looked_at(tmp_path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    files = ("--cert-file", str(certificate), "--key-file", str(key), "--client-cert-auth", "--trusted-ca-file")
    with etcd(tls=(*files, str(certificate))) as served:
        trusted = f"{served.url}?ca={certificate}&cert={certificate}&key={key}"
        await_answer(EtcdCluster.parse(trusted))
        store = EtcdStore(EtcdCluster.parse(trusted))
        store.set("a", b"1")
        assert store.wait("a", 120) == b"1"
        for url in (served.url, served.url.replace("etcds", "etcd"), f"{served.url}?ca={certificate}"):
            with pytest.raises(StoreLost, match=r"see whether"):
                EtcdStore(EtcdCluster.parse(url), patience=0.5)


def test_a_cluster_is_read_from_what_a_user_says() -> None:
    assert EtcdCluster.parse("etcd://h1:1,h2,[::1]:3/my%20run") == EtcdCluster(
        (("h1", 1), ("h2", 2379), ("::1", 3)), run="my run"
    )
    read = EtcdCluster.parse("etcds://me:p%40ss@h:1?ca=/a&cert=/b&key=/c")
    assert (read.user, read.password, read.tls) == ("me", "p@ss", True)
    assert (read.authorities, read.certificate, read.key) == ("/a", "/b", "/c")
    assert "p@ss" not in str(read)


@pytest.mark.parametrize(
    "text",
    [
        *("h:1", "http://h:1", "etcd://", "etcd://h:x", "etcd://h:99999", "etcd://[::1", "etcd://[h]:1"),
        *("etcds://h?c=d", "etcd://h?ca=/a", "etcd://me:secret/@h:1", "etcd://me:secret[@h:1"),
        *("etcd://h:1,[h]:1", "etcd://h,::1", "etcd://h[::1]", "etcd://h:1#run", "etcd://h:0", "etcd://h..g:1"),
    ],
)
def test_what_is_no_cluster_is_one_line(text: str) -> None:
    with pytest.raises(ControlError, match=r"store .*(give|begin)") as caught:
        EtcdCluster.parse(text)
    assert "secret" not in str(caught.value)


def test_files_of_tls_that_cannot_be_read_are_one_line(tmp_path) -> None:
    with pytest.raises(StoreLost, match=r"none.pem: cannot be used for TLS"):
        EtcdStore(EtcdCluster.parse(f"etcds://h?ca={tmp_path}/none.pem"))


def test_a_password_that_others_could_hear_is_told_from_one_that_they_cannot() -> None:
    heard = ("etcd://me:secret@h1", "etcd://me:secret@localhost,h1")
    kept = ("etcds://me:secret@h1", "etcd://h1", "etcd://me:secret@localhost,127.0.0.1,[::1]")
    assert [EtcdCluster.parse(each).tells_password for each in (*heard, *kept)] == [True, True, False, False, False]
