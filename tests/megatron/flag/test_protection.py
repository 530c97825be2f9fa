"""What a rank needs to outlive others, and how the process that torchrun knows ends: real processes, a real store."""

import atexit
import os
import queue
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.parallel_state import RankGenerator
from torch.distributed import TCPStore

from harness.etcd import etcd
from harness.etcd import missing as missing_etcd
from harness.examples import QUICK, paper_job
from harness.processes import children, send_signal
from harness.started import wait_until
from harness.stores import store_apart
from recycle.control.board import keys, run_folder
from recycle.control.board.board import Board
from recycle.control.host.agent import FENCED, LEFT, STOPPED
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Death, Verdict
from recycle.control.membership.view import Member, ServerRank
from recycle.control.store.etcd_store import EtcdStore
from recycle.control.store.tcp_store import listen, serve
from recycle.errors import UserError
from recycle.job import Server
from recycle.megatron.flag.command.flags import REFUSED, find_flags
from recycle.megatron.flag.start import dropin
from recycle.megatron.flag.start import protection as protection_module
from recycle.megatron.flag.start.protection import Protection, find_protection
from recycle.plan.mode import Mode
from recycle.planner.catalogue import make_catalogue
from recycle.runtime.launch.meet import rendezvous as meeting
from recycle.runtime.launch.meet.restart_loop import RestartLoop
from recycle.runtime.launch.meet.secret import TOKEN, TOKEN_FILE, token_of
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.recover.store_connection import StoreProbe

CONTEXT = get_context("fork")
WORDS = "--pipeline-model-parallel-size 2 --micro-batch-size 2 --global-batch-size 8"
JOB = paper_job(pipelines=2, stages=2, micro_batches=2)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """Of a store as torchrun serves one, apart from all ranks."""
    listener = listen()
    host, port = listener.getsockname()
    server = serve(listener)
    yield host, port
    del server


def rank_of(address, run):
    """What torchrun says to the first of four ranks."""
    return {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": address[0],
        "MASTER_PORT": str(address[1]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": run,
    }


@pytest.fixture
def environment(address):
    """Of a run that has the store to itself."""
    return rank_of(address, secrets.token_hex(4))


def own_getaddrinfo(name):
    """Looks up a name of this machine that no machine calls itself by."""
    look_up = socket.getaddrinfo
    return lambda host, *more, **named: look_up("127.0.0.1" if host == name else host, *more, **named)


def protection(environment, words=WORDS):
    arguments = ["--pipeline-schedule", "recycle", *words.split()]
    return find_protection(find_flags(arguments)[0], arguments, environment)


def test_all_ranks_find_the_same_run_in_torchruns_store(environment):
    found = [protection(environment | {"RANK": str(rank)}) for rank in range(4)]
    assert len({(each.servers, each.endpoint) for each in found}) == 1
    endpoint = found[0].endpoint
    assert len(endpoint.token) == 64
    assert endpoint.address == "127.0.0.1"
    board = Board(endpoint.connect(), endpoint.token)
    board.failures.publish_death(Death("W0_0#0", "was lost", "agent", 0.0))
    again = protection(environment | {"TORCHELASTIC_RESTART_COUNT": "again"}).endpoint
    assert again.token != endpoint.token
    assert Board(again.connect(), again.token).failures.death(Member.parse("W0_0#0")) is None


def test_what_is_in_the_store_makes_no_token(environment):
    """On one host, of ranks that share nothing else but their user."""
    endpoint = protection(environment).endpoint
    store = TCPStore(endpoint.host, endpoint.port, is_master=False)
    run = f"recycle/{environment['TORCHELASTIC_RESTART_COUNT']}/"
    found = {key: store.get(key) for key in store.list_keys() if run in key}
    nonces = [value for key, value in found.items() if key.endswith("/nonce")]
    assert len(nonces) == 1
    assert endpoint.token.encode() not in b"".join(found.values())
    assert token_of("", nonces[0][-32:].decode()) != endpoint.token


def test_several_hosts_need_a_secret_or_a_word_of_trust(environment, tmp_path, monkeypatch):
    several = environment | {"GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "localhost.localdomain"}
    monkeypatch.setattr("socket.getaddrinfo", own_getaddrinfo(several["MASTER_ADDR"]))
    with pytest.raises(UserError, match=r"several hosts need a secret .* --recycle-token-file or RECYCLE_TOKEN_FILE"):
        protection(several)
    file = tmp_path / "secret"
    file.write_text("5" * 64)
    found = protection(several, f"{WORDS} --recycle-token-file {file}").endpoint
    for more in ({TOKEN_FILE: str(file)}, {TOKEN: "5" * 64}):
        assert protection(several | more | {"RANK": "1"}).endpoint.token == found.token
    trusting = several | {"TORCHELASTIC_RESTART_COUNT": "trusting"}
    trusted = [protection(trusting | {"RANK": rank}, f"{WORDS} --recycle-trust-network") for rank in "01"]
    assert len({each.endpoint.token for each in trusted} - {found.token}) == 1


def test_options_are_compared_before_ranks_meet(environment):
    protection(environment, f"{WORDS} --lr 0.1")
    second = environment | {"RANK": "1"}
    with pytest.raises(UserError, match=r"was started with --lr 0.2, and process 0, on .*, with --lr 0.1: start all"):
        protection(second, f"{WORDS} --lr 0.2")
    assert isinstance(protection(second, f"{WORDS} --lr 0.1"), Protection)


def test_catalogues_are_compared_by_what_their_files_hold(environment, tmp_path):
    first, same, other = (tmp_path / name for name in ("first.zip", "same.zip", "other.zip"))
    for path, failures in ((first, 1), (other, 0)):
        make_catalogue(path, JOB, Mode("fused", "global"), failures, QUICK, "lowered", lambda *_: None)
    shutil.copy(first, same)
    second, option = environment | {"RANK": "1"}, f"{WORDS} --recycle-catalogue"
    found = protection(environment, f"{option} {first}").catalogue
    first.unlink()
    assert found.look_up([Server(1, 1)]).plan().dead == {Server(1, 1)}
    assert protection(second, f"{option} {same}").catalogue.checksum == found.checksum
    theirs = f"and process 0, on .*, with --recycle-catalogue of checksum {found.checksum}: start all"
    with pytest.raises(UserError, match=rf"was started with --recycle-catalogue of checksum \w+, {theirs}"):
        protection(second, f"{option} {other}")
    with pytest.raises(UserError, match=f"was started without --recycle-catalogue, {theirs}"):
        protection(second)


def test_all_hear_of_a_host_that_cannot_read_the_catalogue(environment, tmp_path):
    path = tmp_path / "none.zip"
    with pytest.raises(UserError, match=r"none\.zip: cannot be read"):
        protection(environment | {"RANK": "1"}, f"{WORDS} --recycle-catalogue {path}")
    with pytest.raises(UserError, match=f"process 1, on .*, takes no part: {path}: cannot be read"):
        protection(environment).gather()


def test_a_rank_with_another_secret_says_who_has_which_and_how_the_flag_gives_one(environment, monkeypatch):
    monkeypatch.setattr(protection_module, "PATIENCE", 0.5)
    protection(environment | {TOKEN: "5" * 64})
    remedy = "where that is no stranger, give all the same file with --recycle-token-file or RECYCLE_TOKEN_FILE"
    with pytest.raises(UserError, match=f"process 0 has another secret: {remedy}"):
        protection(environment | {TOKEN: "6" * 64, "RANK": "1"})


@pytest.mark.parametrize(
    ("words", "changes", "reason"),
    [
        (WORDS, {"RANK": None}, "this process was started alone"),
        (f"{WORDS} --num-experts 4 --expert-model-parallel-size 2", {}, "with one pipeline there are no peers"),
        (f"{WORDS} --num-experts 4 --expert-model-parallel-size 4", {}, "4 ranks are no multiple of 8, the 4 that"),
        (WORDS, {"WORLD_SIZE": "2"}, "with one pipeline there are no peers"),
        (WORDS, {"WORLD_SIZE": "3"}, "3 ranks are no multiple of 2"),
        ("--pipeline-model-parallel-size 2", {}, "--micro-batch-size is missing"),
        (f"{WORDS} --use-mp-args-from-checkpoint-args", {}, "--use-mp-args-from-checkpoint-args: the number of stages"),
    ],
)
def test_what_lets_nobody_outlive_others_is_said(environment, words, changes, reason):
    changed = {name: value for name, value in (environment | changes).items() if value is not None}
    assert protection(changed, words).startswith(reason)


@pytest.mark.parametrize("more", ["", "--recycle-keep-in-memory copies=1"])
def test_a_folder_of_recordings_is_refused_while_another_run_is_alive_in_it(address, tmp_path, monkeypatch, more):
    monkeypatch.setattr(run_folder, "PATIENCE", 0.0)
    first, second = (rank_of(address, secrets.token_hex(4)) for _ in range(2))
    words = f"{WORDS} --recycle-record {tmp_path}"
    with ExitStack() as ranks:
        for rank in range(4):
            ranks.enter_context(protection(first | {"RANK": str(rank)}, words).keys)
        # It would have come for a keeper that an earlier start has left.
        monkeypatch.setattr(protection_module, "KeeperPart", lambda *_: pytest.fail("the folder is not its own"))
        refusal = f"{tmp_path}: a run is alive in it; .* another folder with --recycle-record"
        with pytest.raises(UserError, match=refusal):
            protection(second, f"{words} {more}")
        with pytest.raises(UserError, match=refusal):
            protection(second | {"RANK": "1"}, f"{words} {more}")
    with protection(rank_of(address, secrets.token_hex(4)), words).keys:
        pass


def test_a_first_rank_that_comes_again_to_its_run_takes_part_in_the_folder_of_recordings(address, tmp_path):
    environment, words = rank_of(address, secrets.token_hex(4)), f"{WORDS} --recycle-record {tmp_path}"
    found = [protection(environment | {"RANK": str(rank)}, words) for rank in range(4)]
    found[0].meeting.admit(found[0].endpoint.token, ("", 0))
    found[0].keys.close()
    found.append(protection(environment, words))
    for each in found[1:]:
        each.keys.close()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"GLOO_SOCKET_IFNAME": "eth99"}, "address eth99 cannot be used: .* give GLOO_SOCKET_IFNAME one of .*: .*lo"),
        ({"TORCHELASTIC_USE_AGENT_STORE": ""}, "Address already in use.*; give all processes a free MASTER_PORT"),
    ],
    ids=["an interface that is not there", "a port that is taken"],
)
def test_where_ranks_cannot_meet_is_one_line(environment, changes, reason):
    with pytest.raises(UserError, match=reason):
        protection(environment | changes)


@pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd())
def test_with_etcd_all_hear_that_the_first_process_cannot_make_the_store_for_groups(address):
    with etcd() as served, ThreadPoolExecutor() as pool:
        words = f"--micro-batch-size 2 --global-batch-size 8 --recycle-store {served.url}"
        ranks = [rank_of(address, "0") | {"WORLD_SIZE": "2", "RANK": str(rank)} for rank in range(2)]
        found = [pool.submit(protection, each | {"TORCHELASTIC_USE_AGENT_STORE": ""}, words) for each in ranks]
        for each in found:
            with pytest.raises(UserError, match=r"Address already in use.*; give all processes a free MASTER_PORT"):
                each.result()
        assert EtcdStore(served.cluster).newest_change() == 0


def test_what_cannot_begin_leaves_no_keys_in_etcd(environment, monkeypatch):
    ends = []

    @contextmanager
    def claimed(*_, **__):
        try:
            yield None
        finally:
            ends.append(1)

    def fail():
        raise UserError("nobody has come")

    monkeypatch.setattr("recycle.megatron.flag.start.protection.claimed", claimed)
    monkeypatch.setattr(meeting, "TOLD", 0.0)
    with pytest.raises(UserError, match="eth99"):
        protection(environment | {"GLOO_SOCKET_IFNAME": "eth99"})
    assert len(ends) == 1
    found = protection(environment | {"TORCHELASTIC_RESTART_COUNT": "again"})
    monkeypatch.setattr(found.meeting, "receive", fail)
    assert len(ends) == 1
    with pytest.raises(UserError, match="nobody has come"):
        found.gather()
    assert len(ends) == 2


@settings(deadline=None)
@given(
    pipelines=st.integers(2, 4),
    stages=st.integers(1, 4),
    size=st.integers(1, 3),
    mapped=st.booleans(),
    value=st.sampled_from(["model.json", "model.py"]),
)
def test_servers_are_numbered_as_megatron_numbers_ranks(address, pipelines, stages, size, mapped, value):
    numbers = f"{pipelines} {stages} {size} {mapped} {value}"
    environment = rank_of(address, numbers) | {"WORLD_SIZE": str(pipelines * stages * size)}
    words = f"--pipeline-model-parallel-size {stages} --tensor-model-parallel-size {size} --micro-batch-size 1"
    place = protection(environment, f"{words}{mapped * ' --use-tp-pp-dp-mapping'} --model-config {value}").place
    order = "tp-cp-ep-pp-dp" if mapped else "tp-cp-ep-dp-pp"
    megatron = RankGenerator(tp=size, ep=1, dp=pipelines, pp=stages, cp=1, order=order)
    for kind in ("tp", "pp", "dp"):
        found = {tuple(place(rank) for rank in ranks) for ranks in megatron.get_ranks(kind)}
        assert found == {
            tuple(
                (Server(home, stage), ServerRank(number, size))
                for home in (range(pipelines) if kind == "dp" else [pipeline])
                for stage in (range(stages) if kind == "pp" else [depth])
                for number in (range(size) if kind == "tp" else [plane])
            )
            for pipeline in range(pipelines)
            for depth in range(stages)
            for plane in range(size)
        }


def on_two_hosts(environment, words, monkeypatch, on_first=2):
    """Four ranks that have come, as many from the first of two hosts as is said; the first one knows it."""
    first, *others = [protection(environment | {"RANK": str(rank)}, words) for rank in range(4)]
    for rank, each in enumerate([*others, first]):
        host = f"host{int((rank + 1) % 4 >= on_first)}"
        monkeypatch.setattr(meeting.socket, "gethostname", lambda host=host: host)
        each.meeting.greet()
    first.gather()
    return first, *others


def test_a_host_with_both_holders_of_a_shard_is_said(environment, monkeypatch):
    first, *_ = on_two_hosts(environment, f"{WORDS} --pipeline-model-parallel-size 1", monkeypatch, on_first=3)
    _, shard = first.risks(shards=True)
    text = "both servers that hold a shard of the optimizer's state of stage 0 are on one host, whose loss ends the run"
    assert shard == f"{text}: start at most 1 of its servers on a host"
    assert len(first.risks(shards=False)) == 1


@pytest.mark.parametrize(
    ("words", "alone"),
    [
        (WORDS, ["stage 0 are on host0", "stage 1 are on host1"]),
        (f"{WORDS} --use-tp-pp-dp-mapping", []),
        (f"{WORDS} --use-tp-pp-dp-mapping --pipeline-model-parallel-size 1 --tensor-model-parallel-size 2", []),
    ],
)
def test_what_the_loss_of_one_host_would_end_is_said(environment, words, alone, monkeypatch):
    first, *others = on_two_hosts(environment, words, monkeypatch)
    *stages, store = first.risks(shards=False)
    ends = ", whose loss ends the run: add --use-tp-pp-dp-mapping, and start at most 2 of its servers on a host"
    assert stages == [f"all servers of {each}{ends}" for each in alone]
    assert store.startswith("the store is on host0, ")
    assert "; with --recycle-store etcd://HOST" in store
    assert others[0].risks(shards=True) == []


# The end of a rank.

MEMBERS = tuple(Member(Server(pipeline, stage), 0) for pipeline in range(2) for stage in range(2))


def verdict(epoch, members=MEMBERS, stop=""):
    return Verdict(epoch, tuple(map(str, members)), 0, stop=stop)


def lay_dead(board, member):
    board.failures.publish_death(Death(str(member), "was lost", "agent", 0.0))


class Rank:
    """The second rank of a run, in a process of its own."""

    def __init__(
        self,
        address: tuple[str, int],
        run: str,
        work: Callable[[Protection], None],
        restarts: int = 0,
        asks: int = signal.SIGTERM,
    ) -> None:
        self.member = MEMBERS[2]
        endpoint = Endpoint(*address, run, prefix=run)
        servers = tuple(sorted((member.server for member in MEMBERS), key=lambda server: server.stage))
        self.board = Board(endpoint.connect(), run)

        def serve() -> None:
            # What other tests have left to be done at the end of this process is not to be done at that of the rank.
            atexit._clear()
            flags, _ = find_flags(["--recycle-restarts", str(restarts)])
            os._exit(Protection(servers, endpoint, flags).serve(1, work, asks))

        self.process = CONTEXT.Process(target=serve)
        self.process.start()

    def ended(self) -> int | None:
        self.process.join(120)
        return self.process.exitcode

    def wait_for_death(self) -> None:
        wait_until(lambda: self.board.failures.death(self.member) is not None)

    def is_there_after(self, seconds: float) -> bool:
        self.process.join(seconds)
        return self.process.is_alive()


@pytest.fixture
def start(address) -> Iterator[Callable[..., Rank]]:
    started: list[Rank] = []

    def start(work: Callable[[Protection], None], address: tuple[str, int] = address, **settings: int) -> Rank:
        started.append(Rank(address, secrets.token_hex(4), work, **settings))
        return started[-1]

    yield start
    for rank in started:
        rank.process.kill()
        rank.process.join()


@pytest.fixture
def start_in_view(start) -> Callable[..., Rank]:
    """Start a rank whose work goes on when there is a view."""

    def start_in_view(work: Callable[[], None], **where: tuple[str, int]) -> Rank:
        begun, ready = CONTEXT.Event(), CONTEXT.Event()

        def wait_and_work(_: Protection) -> None:
            begun.set()
            ready.wait()
            work()

        rank = start(wait_and_work, **where)
        begun.wait()
        rank.board.verdicts.propose(verdict(0))
        ready.set()
        return rank

    return start_in_view


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def leave(status):
    def work():
        raise SystemExit(status)

    return work


def refuse():
    raise UserError("--lr is missing: give it")


def lose_store():
    raise StoreLost("the store does not answer")


def log_at_the_end():
    atexit.register(os.write, 2, b"all was logged\n")


def fail():
    raise OSError("this is what happened")


ENDS = {
    "returns": (lambda: None, 0, ""),
    "exits": (leave(None), 0, ""),
    "exits with 0": (leave(0), 0, ""),
    "exits with 5": (leave(5), 5, ""),
    "exits with words": (leave("words"), 1, "words\n"),
    "stopped": (leave(STOPPED), STOPPED, ""),
    "logs": (log_at_the_end, 0, "all was logged\n"),
    "refuses": (refuse, REFUSED, "recycle: --lr is missing: give it\n"),
    "has lost the store": (
        lose_store,
        STOPPED,
        "recycle: the store was lost before the run began: the store does not answer; train again\n",
    ),
    "fails": (fail, 1, "OSError: this is what happened\n"),
    "dies": (die, 128 + signal.SIGKILL, ""),
}
"""How work ends, and the status and the words with which its rank does."""


@pytest.mark.parametrize("end", ENDS)
def test_before_there_is_a_view_a_rank_ends_as_its_work_does(start, capfd, end):
    work, status, said = ENDS[end]
    assert start(lambda _: work()).ended() == status
    captured = capfd.readouterr()
    assert captured.err.endswith(said)
    assert bool(captured.err) == bool(said)


@pytest.mark.parametrize("work", [die, leave(FENCED), fail, refuse], ids=["dies", "is fenced", "fails", "refuses"])
def test_a_rank_whose_work_has_died_ends_well_as_soon_as_all_others_have_reached_the_end(start_in_view, work):
    rank = start_in_view(work)
    rank.wait_for_death()
    first, second, third = [member for member in MEMBERS if member != rank.member]
    # One of them dies as well, in the view that goes on without this rank.
    rank.board.verdicts.propose(verdict(1, (first, second, third)))
    rank.board.end.reach(verdict(1, (first, second, third)).view, first)
    lay_dead(rank.board, first)
    last = verdict(2, (second, third))
    rank.board.verdicts.propose(last)
    rank.board.end.reach(last.view, second)
    # It looks twice a second: it has looked while one was still on its way.
    assert rank.is_there_after(1.2)
    rank.board.end.reach(last.view, third)
    assert rank.ended() == 0


def test_a_rank_whose_work_was_stopped_waits_for_nobody(start_in_view):
    assert start_in_view(leave(STOPPED)).ended() == STOPPED


def make_stop(rank):
    rank.board.verdicts.propose(verdict(1, MEMBERS[:2], stop="no live server of stage 0 is left"))


def make_all_die(rank):
    for member in MEMBERS:
        lay_dead(rank.board, member)


def tell_to_end(rank):
    os.kill(rank.process.pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("happen", "status"), [(make_stop, signal.SIGKILL), (make_all_die, signal.SIGKILL), (tell_to_end, signal.SIGTERM)]
)
def test_a_rank_whose_work_has_died_says_so_if_nobody_keeps_the_run(start_in_view, happen, status):
    rank = start_in_view(die)
    rank.wait_for_death()
    assert rank.is_there_after(0.2)
    happen(rank)
    assert rank.ended() == 128 + status


def test_when_the_store_is_lost_a_rank_whose_work_has_died_waits_for_nobody(start_in_view):
    with store_apart() as store:
        rank = start_in_view(leave(7), address=(store.host, store.port))
        rank.wait_for_death()
        assert rank.is_there_after(0.2)
        store.kill()
        assert rank.ended() == 7


@pytest.mark.parametrize(("status", "lives"), [(9, [0, 1, 2]), (REFUSED, [0]), (STOPPED, [0])])
def test_work_that_has_crashed_is_done_again_as_often_as_that_may_be(start, capfd, status, lives):
    seen, begun, ready = CONTEXT.SimpleQueue(), CONTEXT.Event(), CONTEXT.Event()

    def work(given):
        begun.set()
        ready.wait()
        seen.put(given.life)
        raise SystemExit(status)

    rank = start(work, restarts=2)
    begun.wait()
    rank.board.verdicts.propose(verdict(0))
    ready.set()
    assert [seen.get() for _ in lives] == lives
    said = ""
    while len(lives) > 1 and "W1_0 has crashed more than 2 times within an hour" not in said:
        said += capfd.readouterr().err
        time.sleep(0.01)
    make_all_die(rank)
    assert rank.ended() == status
    assert seen.empty()


def tell_work_to_end(rank):
    (worker,) = children(rank.process.pid)
    send_signal(worker, signal.SIGTERM)


@pytest.mark.parametrize(("left", "status"), [(0, 0), (LEFT, 128 + signal.SIGTERM), (9, 128 + signal.SIGTERM)])
def test_the_work_hears_sigterm_from_its_agent_which_waits_for_it(start, tmp_path, left, status):
    """The work leaves the run, or Megatron saves before it ends."""
    begun, ready = CONTEXT.Event(), CONTEXT.Event()

    def work(_):
        told = []
        signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
        begun.set()
        while not told:
            time.sleep(0.01)
        ready.wait()
        (tmp_path / "saved").touch()
        raise SystemExit(left)

    rank = start(work)
    begun.wait()
    tell_to_end(rank)
    # torchrun tells all processes of a rank.
    tell_work_to_end(rank)
    assert rank.is_there_after(0.2)
    ready.set()
    assert rank.ended() == status
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("asks", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_the_work_hears_the_signal_that_megatron_takes_for_the_end(start, asks, sent):
    """Another one of those that end a process tells it to leave, and the rest are as without an agent."""
    begun, told = CONTEXT.Event(), CONTEXT.SimpleQueue()

    def work(_):
        for number in {asks, signal.SIGTERM}:
            signal.signal(number, lambda number, _: told.put(number))
        begun.set()
        while told.empty():
            time.sleep(0.01)

    # Where these tests are started by nohup, it would be ignored.
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    rank = start(work, asks=asks)
    signal.signal(signal.SIGHUP, hung_up)
    begun.wait()
    os.kill(rank.process.pid, sent)
    status = rank.ended()
    if sent not in (asks, signal.SIGTERM, signal.SIGINT):
        assert status == -sent
    else:
        assert (status, told.get()) == (0, asks if sent == asks else signal.SIGTERM)


@pytest.mark.parametrize(("asks", "sent"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGUSR2, signal.SIGUSR2)])
def test_the_work_hears_a_signal_that_comes_before_its_agent_knows_its_process(start, monkeypatch, asks, sent):
    begun, told = CONTEXT.Event(), CONTEXT.SimpleQueue()
    run_agent = protection_module.run_agent

    def run_slow_agent(member, body, connect, token, durations, began, *others):
        def begin(worker):
            begun.wait()
            os.kill(os.getpid(), sent)
            began(worker)

        return run_agent(member, body, connect, token, durations, begin, *others)

    def work(_):
        signal.signal(asks, lambda number, _: told.put(number))
        begun.set()
        while told.empty():
            time.sleep(0.01)

    monkeypatch.setattr(protection_module, "run_agent", run_slow_agent)
    assert start(work, asks=asks).ended() == 0
    assert told.get() == sent


def test_a_signal_that_comes_before_there_is_a_worker_ends_the_rank(start, monkeypatch):
    first = RestartLoop.first

    def be_told(*arguments, **words):
        os.kill(os.getpid(), signal.SIGTERM)
        return first(*arguments, **words)

    monkeypatch.setattr(RestartLoop, "first", be_told)
    assert start(lambda _: time.sleep(300)).ended() == 128 + signal.SIGTERM


def test_what_megatron_takes_for_the_end_is_not_for_the_next_worker_if_it_comes_between_two(start, monkeypatch):
    seen, ready, begun = CONTEXT.SimpleQueue(), CONTEXT.Event(), [CONTEXT.Event(), CONTEXT.Event()]
    run_agent, after_crash = protection_module.run_agent, RestartLoop.after_crash

    def be_told(loop, member):
        os.kill(os.getpid(), signal.SIGUSR1)
        return after_crash(loop, member)

    def run_slow_agent(member, body, connect, token, durations, began, *others):
        def begin(worker):
            begun[member.incarnation].wait()
            began(worker)

        return run_agent(member, body, connect, token, durations, begin, *others)

    def work(given):
        begun[given.life].set()
        ready.wait()
        if not given.life:
            die()
        time.sleep(0.2)
        seen.put(given.life)

    monkeypatch.setattr(RestartLoop, "after_crash", be_told)
    monkeypatch.setattr(protection_module, "run_agent", run_slow_agent)
    rank = start(work, restarts=1, asks=signal.SIGUSR1)
    begun[0].wait()
    rank.board.verdicts.propose(verdict(0))
    ready.set()
    wait_until(lambda: not seen.empty(), 60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_a_rank_at_once(start, number):
    begun = CONTEXT.Event()

    def work(_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        begun.set()
        time.sleep(300)

    rank = start(work)
    begun.wait()
    tell_to_end(rank)
    assert rank.is_there_after(0.2)
    os.kill(rank.process.pid, number)
    assert rank.ended() != 0


def test_work_that_asked_for_nothing_is_ended_by_sigterm(start):
    begun = CONTEXT.Event()

    def work(_):
        begun.set()
        time.sleep(300)

    rank = start(work)
    begun.wait()
    tell_work_to_end(rank)
    assert rank.ended() == 128 + signal.SIGTERM


@pytest.fixture
def joined(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Protection:
    """A rank at a store like torchrun's."""
    host, port = address
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", secrets.token_hex(4))
    endpoint = Endpoint(host, port, "token", prefix=secrets.token_hex(4))
    return Protection((Server(0, 0),), endpoint, find_flags([])[0])


def test_what_groups_meet_by_at_the_start_is_sealed(joined: Protection) -> None:
    first, second, stranger = dropin.torch_store(joined), dropin.torch_store(joined), dropin.job_store().torch_store
    first.set("0", "an address")
    assert second.get("0") == b"an address"
    stranger.set("1", "an address")
    assert stranger.check(["0", "1"])
    assert not second.check(["1"])
    stranger.set("0", "another address")
    assert stranger.check(["0"]), "it has arrived"
    assert not second.check(["0"])


def test_a_rank_that_comes_back_says_which_note_it_misses_and_has_it_put_back(
    joined: Protection, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, said = joined.endpoint, queue.SimpleQueue()
    monkeypatch.setattr(dropin, "say", said.put)
    first = dropin.notes_of(joined)
    first.tell("plan", b"a plan")
    assert first.read("plan") == b"a plan", "it has arrived"
    store = endpoint.connect()
    store.delete(keys.note("plan"))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(dropin.notes_of(joined._replace(life=1)).read, "plan")
        assert said.get(timeout=60) == (
            "the plan of this run is missing in the store; members of the run are asked to put it back"
        )
        probe, board = StoreProbe(1.0), Board(store, endpoint.token)
        probe.notes = first.known
        while not reading.done():
            probe.require(board)
    assert reading.result() == b"a plan"
