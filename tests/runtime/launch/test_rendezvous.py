"""The meeting of processes that were started apart: a real store, and a thread for each of them."""

import socket
import threading
from types import SimpleNamespace

import pytest
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import _TERMINAL_STATE_SYNC_ID
from torch.distributed.elastic.utils.store import barrier

from harness.memory_store import MemoryStore
from harness.ports import free_port
from harness.started import wait_until
from recycle.control.board.joinfile import digest_of
from recycle.control.host import waiting_notice as awaiting
from recycle.control.store.tcp_store import TorchStore, listen, serve
from recycle.errors import EndedAtOnce, UserError
from recycle.runtime.launch.meet import rendezvous as meetings
from recycle.runtime.launch.meet.greetings import Hello, absent, other_secret, why_not
from recycle.runtime.launch.meet.rendezvous import Rendezvous
from recycle.runtime.launch.meet.secret import corner_of
from recycle.runtime.launch.meet.start import Start
from recycle.threads import NoneLeft

RELEASE = {"recycle": "1", "torch": "2"}


@pytest.fixture
def store():
    server = serve(listen())
    yield server.port
    del server


def meeting(port, rank, patience=120.0, served=False, count=2, say=lambda _: None, secret="a secret"):
    return Rendezvous(Start(rank, count, str(rank), "127.0.0.1", port, served), patience, say=say, secret=secret)


class Other:
    """The second process."""

    def __init__(self, port, **start):
        self.admission = self.error = None
        self._meeting = meeting(port, 1, **start)
        self._thread = threading.Thread(target=self._attend)
        self._thread.start()

    def end(self):
        self._thread.join(120)
        assert not self._thread.is_alive()

    def _attend(self):
        try:
            self.admission = self._meeting.attend()
            self._meeting.leave(0)
        except UserError as error:
            self.error = str(error)


def let_in(first, other, token="token"):
    """The first process has all others come, and they hear of the run."""
    first.receive()
    first.admit(token, ("127.0.0.1", 5))
    other.end()


def test_the_first_process_lets_all_others_in_and_waits_for_their_leave(store):
    first, other = meeting(store, 0), Other(store)
    let_in(first, other)
    assert len(first.hosts) == 2
    assert other.admission.digest == digest_of("token")
    assert other.admission.watch == ("127.0.0.1", 5)
    first.leave(0)
    first.dismiss([0, 1])


def test_nobody_waits_at_the_end_for_who_was_lost_before(store, monkeypatch):
    monkeypatch.setattr(meetings, "FAREWELL", float("inf"))
    monkeypatch.setattr(meetings, "GRACE", 0.0)
    first = meeting(store, 0)
    first.leave(0)
    first.dismiss([0])


def test_who_stays_to_the_end_without_a_server_is_waited_for_though_another_has_come_for_that(store, monkeypatch):
    monkeypatch.setattr(meetings, "FAREWELL", 0.0)
    monkeypatch.setattr(meetings, "GRACE", 0.0)
    monkeypatch.setattr(meetings, "TOLD", 120.0)
    first, old, new = meeting(store, 0), meeting(store, 1), meeting(store, 1)
    old.stay()
    for each in (first, new):
        each.leave(0)
    ended = threading.Thread(target=first.dismiss, args=([0, 1],))
    ended.start()
    ended.join(1.0)
    assert ended.is_alive()
    old.leave(0)
    ended.join(60.0)
    assert not ended.is_alive()


def test_who_stays_and_is_killed_is_waited_for_a_moment(store, monkeypatch):
    monkeypatch.setattr(meetings, "TOLD", 0.5)
    first, old = meeting(store, 0), meeting(store, 1)
    old.stay()
    first.leave(0)
    first.dismiss([0, 1])


def test_torchrun_does_not_wait_at_its_end_for_a_host_whose_processes_have_only_greeted(store, monkeypatch):
    monkeypatch.setattr(meetings, "GRACE", 0.0)
    first, lost = (
        Rendezvous(Start(rank, 2, str(rank), "127.0.0.1", store, served=True, job="none", nodes=2), 120.0)
        for rank in range(2)
    )
    lost.greet()
    first.greet()
    first.leave(0)
    first.dismiss([0])
    torchruns = PrefixStore("none", TCPStore("127.0.0.1", store, is_master=False, wait_for_workers=False))
    # It raises where the other host is missed.
    barrier(torchruns, 2, _TERMINAL_STATE_SYNC_ID, barrier_timeout=5)


def test_mixed_releases_are_refused_on_both_sides(store, monkeypatch):
    other = Other(store)
    first = meeting(store, 0)
    # The other one is there with its own release by now, or will come with the same.
    monkeypatch.setattr(meetings, "why_not", lambda hellos: "host2: recycle is '1', and that of the run is '2'")
    with pytest.raises(UserError, match="recycle is '1'"):
        first.receive()
    other.end()
    assert other.error == "host2: recycle is '1', and that of the run is '2'"


def test_who_comes_when_the_run_has_begun_knows_it_and_compares_itself_with_those_who_go_on(store, monkeypatch):
    first, other = meeting(store, 0), Other(store)
    let_in(first, other)
    late = meeting(store, 1)
    assert late.attend().watch == ("127.0.0.1", 5)
    assert late.is_late
    assert not first.is_late
    monkeypatch.setattr(meetings, "release", lambda: RELEASE)
    with pytest.raises(UserError, match=r"recycle is '1', and that of the run is .* on 127\.0\.0\.1: install the same"):
        meeting(store, 1).attend()


def test_an_error_before_the_run_is_told_to_those_who_wait_for_it(store):
    other = Other(store)
    with pytest.raises(UserError), meeting(store, 0, served=True).telling_others():
        raise UserError("model.toml: cannot be read")
    other.end()
    assert other.error == "model.toml: cannot be read"


@pytest.mark.parametrize(("rank", "count"), [(0, 2), (2, 3)])
def test_that_the_system_gives_no_process_is_told_to_those_who_wait_for_the_run(store, rank, count):
    other, process = Other(store, count=count), meeting(store, rank, count=count, served=True)
    with pytest.raises(UserError, match="no more processes"), process.telling_others():
        raise NoneLeft("processes")
    other.end()
    assert "the system gives no more processes: raise ulimit -u" in other.error


def test_who_is_ended_at_once_in_the_midst_of_a_run_does_not_say_that_there_is_none(store):
    first, other = meeting(store, 0, served=True), Other(store)
    let_in(first, other)
    with pytest.raises(EndedAtOnce), first.telling_others():
        raise EndedAtOnce("SIGTERM: ended at once", 15)
    assert meeting(store, 1).attend().refusal == ""


def test_a_first_process_that_comes_again_and_fails_keeps_nobody_out_of_the_run(store):
    let_in(meeting(store, 0), Other(store))
    again = meeting(store, 0, served=True)
    again.has_store = True
    with pytest.raises(UserError, match="no such interface"), again.telling_others():
        raise UserError("no such interface")
    other = Other(store)
    other.end()
    assert other.admission.digest == digest_of("token")
    assert other.admission.refusal == ""


def test_who_cannot_take_part_is_named_to_all_who_wait(store):
    other = Other(store, count=3)
    with pytest.raises(UserError, match="eth9"), meeting(store, 2, count=3).telling_others():
        raise UserError("address eth9 cannot be used: give another one")
    with pytest.raises(UserError, match=r"process 2, on .*, takes no part: address eth9 cannot be used: give another"):
        meeting(store, 0, count=3).receive()
    other.end()
    assert other.error.endswith("takes no part: address eth9 cannot be used: give another one")


def test_nobody_takes_the_place_of_a_process_that_waits_for_the_run(store):
    first, other = meeting(store, 0), Other(store)
    first.receive()
    for rank in range(2):
        with pytest.raises(UserError, match=f"process {rank} has come already, on .*: .* MASTER_PORT of its own"):
            meeting(store, rank).greet()
    first.admit("token", ("127.0.0.1", 5))
    other.end()
    assert other.admission.watch == ("127.0.0.1", 5)


def test_a_process_that_was_told_of_others_is_refused(store):
    other = Other(store, count=3)
    with pytest.raises(UserError, match=r"told that there are 3, and the first one, on .*, that there are 2: start"):
        meeting(store, 0).receive()
    other.end()
    assert "that there are 2: start all with the same number" in other.error


def test_what_strangers_say_before_a_run_is_not_heard(store):
    """Neither that there is none, nor that they are one of its processes."""
    stranger = TorchStore("127.0.0.1", store, prefix="recycle/0/start")
    other_run = meeting(store, 1, secret="another secret")
    keys = [
        f"{corner_of('a secret')}/{key}" for key in ("withdrawn", "admission", "nonce", "hello/0", "hello/1", "left/1")
    ]
    for key in keys:
        stranger.set(key, b"garbage")
    other_run.leave(1)
    first, other = meeting(store, 0), Other(store)
    token = first.agree_on_token()
    assert meeting(store, 1).agree_on_token() == token
    let_in(first, other, token)
    assert other.admission.digest == digest_of(token)
    assert token.encode() not in b"".join(filter(None, stranger.get_many(keys)))


def test_who_has_another_secret_is_no_part_of_the_start_and_that_is_said(store):
    first, other = meeting(store, 0, 0.5), meeting(store, 1, 0.5, secret="another secret")
    other.greet()
    said = "; process {} has another secret: where that is no stranger, give all the same"
    with pytest.raises(UserError, match=f"process 1 of 2 has not come within 0.5 s: .*{said.format(1)}"):
        first.receive()
    first.agree_on_token()
    with pytest.raises(UserError, match=said.format(0)):
        other.agree_on_token()


def test_who_have_another_secret_are_named_with_the_remedy_and_many_are_counted():
    assert other_secret([3], "mend it") == "process 3 has another secret: where that is no stranger, mend it"
    shown = "processes 0, 1, 2, 3, 4, 5, 6, 7 and 2 more have another secret: "
    assert other_secret(range(10), "mend it").startswith(shown)


def test_a_first_process_that_comes_again_with_another_secret_changes_nothing_of_the_run(store):
    first, other = meeting(store, 0, served=True), Other(store)
    token = first.agree_on_token()
    let_in(first, other, token)
    strange = meeting(store, 0, 0.5, served=True, secret="another secret")
    assert strange.agree_on_token() != token
    assert not strange.is_over()
    with pytest.raises(UserError, match="another secret"), strange.telling_others():
        strange.receive()
    for rank in range(2):
        assert meeting(store, rank).agree_on_token() == token
        assert meeting(store, rank).attend().digest == digest_of(token)


def test_who_does_not_come_is_named(store):
    with pytest.raises(UserError, match=r"process 1 of 2 has not come within 0\.5 s"):
        meeting(store, 0, 0.5).receive()


def test_no_run_begins_with_a_process_that_has_given_up(store):
    reason = "the first process, on 127.0.0.1, has not begun a run"
    with pytest.raises(UserError, match=reason):
        meeting(store, 1, 0.1).attend()
    with pytest.raises(UserError, match=f"process 1, on .*, takes no part: {reason}"):
        meeting(store, 0).receive()


def test_the_others_wait_until_the_first_process_has_named_who_is_missing(store):
    first = meeting(store, 0, 1.5, count=3)
    first.greet()
    other = Other(store, patience=0.1, count=3)
    with pytest.raises(UserError, match=r"process 2 of 3 has not come within 1\.5 s"):
        first.receive()
    other.end()
    assert "process 2 of 3 has not come within 1.5 s" in other.error


def test_the_first_process_waits_for_all_others_together_as_long_as_for_one(monkeypatch):
    store, clock, due = MemoryStore(), [0.0], {1: 90.0, 2: 150.0}

    def wait(_, key, timeout):
        if store.get(key) is None:
            clock[0] += timeout
        for rank in [rank for rank, time in due.items() if time <= clock[0]]:
            del due[rank]
            meeting(0, rank, count=3).greet()
        return store.get(key)

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(MemoryStore, "wait", wait)
    monkeypatch.setattr(meetings, "await_store", lambda *_: store)
    monkeypatch.setattr(meetings, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    with pytest.raises(UserError, match="process 2 of 3 has not come within 100 s"):
        meeting(0, 0, 100.0, count=3).receive()


def test_who_waits_says_for_whom(store, monkeypatch):
    monkeypatch.setattr(awaiting, "FIRST", 0.0)
    said = []
    first = meeting(store, 0, 1.5, count=3, say=said.append)
    other = Other(store, count=3, say=said.append)
    # It has come by then.
    wait_until(lambda: any(each.startswith("process 1 waits") for each in said))
    with pytest.raises(UserError, match=r"process 2 of 3 has not come within 1\.5 s; see what their hosts say"):
        first.receive()
    other.end()
    assert "process 0 waits: process 2 of 3 has not come" in said


def test_a_process_that_waits_for_the_store_says_where_that_is(monkeypatch):
    monkeypatch.setattr(awaiting, "FIRST", 0.0)
    said, port = [], free_port()
    with pytest.raises(UserError):
        Rendezvous(Start(1, 2, "1", "127.0.0.1", port), 0.3, say=said.append).attend()
    assert said == [f"process 1 waits for the store at 127.0.0.1:{port}, which the first process serves"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("127.0.1.1", 0))])
    with pytest.raises(UserError):
        Rendezvous(Start(1, 2, "1", "host1", port), 0.3, say=said.append).attend()
    assert f"on {socket.gethostname()}, host1 is 127.0.1.1, itself: " in said[1]


@pytest.mark.parametrize(
    ("start", "missing", "text"),
    [
        (Start(0, 4, "", "first", 5), [3], "process 3 of 4 has not come"),
        (Start(0, 4, "", "first", 5), [1, 3], "processes 1, 3 of 4 have not come"),
        (
            Start(0, 20, "", "first", 5),
            range(1, 19),
            "processes 1, 2, 3, 4, 5, 6, 7, 8 and 10 more of 20 have not come",
        ),
        (Start(2, 3, "", "first", 5), [0], "process 0 of 3 has not come"),
        # Nobody has come: perhaps nobody was started.
        (
            Start(0, 3, "", "first", 5),
            [1, 2],
            "processes 1, 2 of 3 have not come: RANK and WORLD_SIZE say that this is process 0 of 3; start the others "
            "as well, or unset them if there are none",
        ),
        (
            Start(0, 2, "", "first", 5, by_slurm=True),
            [1],
            "process 1 of 2 has not come: SLURM_PROCID and SLURM_STEP_NUM_TASKS say that this is process 0 of 2; "
            "if srun has not started this command, the shell has them from salloc or srun --pty: start it by srun, "
            "or unset them",
        ),
    ],
)
def test_who_has_not_come_and_why_nobody_may_have(start, missing, text):
    assert absent(start, list(missing)) == text


def test_a_store_that_is_nowhere_is_one_line():
    port = free_port()
    with pytest.raises(UserError, match=f"the store at 127.0.0.1:{port} does not answer within 0.3 s: see whether"):
        meeting(port, 1, 0.3).attend()


def hello(host="host1", address="10.0.0.1", **release):
    return Hello(host, "0", address, RELEASE | release)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (hello("host2", "10.0.0.2"), ""),
        (hello("host2", recycle="0"), "host2: recycle is '0', and that of the run is '1' on host1: install the same"),
        (hello("host2", "fd00::2"), "host2: its address fd00::2 is one of IPv6, and that of host1, 10.0.0.1, is none"),
        (hello("host2", "::1"), "host2: its address is that of no network, so host1 cannot reach it"),
        (hello("host2", "127.0.1.1"), "host2: its address is that of no network, so host1 cannot reach it"),
    ],
)
def test_who_cannot_train_together(other, reason):
    assert why_not([hello(), other]).startswith(reason)
    assert bool(why_not([hello(), other])) == bool(reason)
