"""Agents with real processes, real signals and a real store."""

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess

import pytest

from harness.memory_store import MemoryStore
from harness.processes import is_running, score_for_want_of_memory, send_signal
from recycle.control.board.board import Board
from recycle.control.board.parts import EndBoard
from recycle.control.host import agent as agents
from recycle.control.host import lifeline
from recycle.control.host.agent import CUT_SHORT, DONE, FENCED, GOOD, STOPPED, HostAccess, run_agent
from recycle.control.host.heartbeats import Heartbeat
from recycle.control.host.signs import HostSocket, host_name
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Death, Verdict
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, View
from recycle.control.store.store import Store
from recycle.control.store.tcp_store import TorchStore
from recycle.threads import NoneLeft

# No worker is late by so much, however busy the machine is.
DURATIONS = Durations(beat=0.05, silence=5.0, hang=60.0, answer=60.0)
FIRST, SECOND, THIRD, FOURTH = (Member.parse(name) for name in ("W0_0#0", "W0_1#0", "W1_0#0", "W1_1#0"))
MEMBERS = (FIRST, SECOND, THIRD, FOURTH)
CONTEXT = get_context("fork")
Eventually = Callable[[Callable[[], bool]], None]


def sleep() -> int:
    time.sleep(300)
    return 0


class Run:
    """Workers that beat, each with its agent, in processes of their own."""

    def __init__(self, store: TorchStore) -> None:
        self.token = secrets.token_hex(8)
        self.board = Board(store, self.token)
        self.connect = store.clone
        self.agents: dict[Member, ForkProcess] = {}
        self.workers: dict[Member, int] = {}
        self.board.verdicts.propose(verdict(0))

    def start(
        self,
        member: Member,
        work: Callable[[], int] = sleep,
        connect: Callable | None = None,
        access: HostAccess | None = None,
    ) -> None:
        connect = connect or self.connect
        started = CONTEXT.SimpleQueue()

        def body() -> int:
            Heartbeat(member, self.token, DURATIONS.beat)
            started.put(os.getpid())
            return work()

        def watch() -> None:
            os._exit(abs(run_agent(member, body, connect, self.token, DURATIONS, access=access)))

        agent = CONTEXT.Process(target=watch)
        agent.start()
        self.agents[member] = agent
        self.workers[member] = started.get()

    def ended(self, member: Member) -> int | None:
        agent = self.agents[member]
        # What it leaves behind holds the sentinel for which a join waits.
        end = os.pidfd_open(agent.pid)
        wait([end], 120)
        os.close(end)
        return agent.exitcode

    def is_running(self, member: Member) -> bool:
        return is_running(self.workers[member])


def verdict(epoch: int, *members: Member) -> Verdict:
    return Verdict(epoch, tuple(str(member) for member in members or MEMBERS), 0)


@pytest.fixture
def run(served_apart) -> Iterator[Run]:
    run = Run(served_apart[0])
    yield run
    for agent in run.agents.values():
        agent.kill()
        agent.join()


def test_a_killed_worker_is_reported_and_the_alarm_raised(run: Run) -> None:
    run.start(FIRST)
    send_signal(run.workers[FIRST], signal.SIGKILL)
    assert run.board.failures.wait_alarm(0, 120).cause == "W0_0#0 was killed by signal 9 (SIGKILL)"
    death = run.board.failures.death(FIRST)
    assert (death.reason, death.noticed) == ("was killed by signal 9 (SIGKILL)", "agent")
    assert run.ended(FIRST) == signal.SIGKILL


@pytest.mark.parametrize("victim", ["worker", "agent"])
def test_a_relay_runs_beside_who_speaks_for_the_host_and_whoever_speaks_next_has_another(
    run: Run, eventually: Eventually, victim: str
) -> None:
    relays = CONTEXT.SimpleQueue()

    def relay() -> None:
        relays.put(os.getpid())
        time.sleep(300)

    run.start(FIRST, access=HostAccess(LOOPBACK, relay))
    first = relays.get()
    run.start(SECOND, access=HostAccess(LOOPBACK, relay))
    send_signal(run.workers[FIRST] if victim == "worker" else run.agents[FIRST].pid, signal.SIGKILL)
    second = relays.get()
    assert second != first
    run.ended(FIRST)
    eventually(lambda: not is_running(first))
    assert is_running(second)
    assert run.is_running(SECOND)


def test_an_agent_that_waits_for_its_store_for_longer_than_a_host_may_be_silent_is_not_missed(run: Run) -> None:
    connected = CONTEXT.Event()

    def connect_late() -> Store:
        time.sleep(1.5 * DURATIONS.silence)
        connected.set()
        return run.connect()

    run.start(FIRST)
    run.start(SECOND, connect=connect_late)
    connected.wait()
    assert run.board.failures.death(SECOND) is None
    assert run.is_running(SECOND)


def test_for_want_of_memory_the_kernel_ends_the_worker_before_its_agent(run: Run) -> None:
    run.start(FIRST)
    worker, agent = run.workers[FIRST], run.agents[FIRST].pid
    assert score_for_want_of_memory(worker) > score_for_want_of_memory(agent)


def test_an_agent_that_gets_no_thread_and_no_further_process_goes_on_and_speaks_when_it_gets_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    relays, refused, own = CONTEXT.SimpleQueue(), [], agents.fork_below

    def fork_worker_and_later_relay(body: Callable[[], int | None]) -> int:
        refused.append(body)
        if len(refused) in (2, 3):
            raise NoneLeft("processes")
        return own(body)

    def refuse(*_: object) -> None:
        raise NoneLeft("threads")

    monkeypatch.setattr(agents, "fork_below", fork_worker_and_later_relay)
    monkeypatch.setattr(lifeline, "start_thread", refuse)
    run.start(FIRST, access=HostAccess(LOOPBACK, lambda: relays.put(os.getpid()) or time.sleep(300)))
    relay = relays.get()
    assert is_running(relay)
    send_signal(run.workers[FIRST], signal.SIGKILL)
    assert run.board.failures.wait_alarm(0, 120).cause == "W0_0#0 was killed by signal 9 (SIGKILL)"
    assert run.ended(FIRST) == signal.SIGKILL
    assert not is_running(relay)


def test_who_was_started_again_and_is_not_let_in_before_the_end_of_the_run_ends_with_it(run: Run) -> None:
    # The store may end with the run, and then nobody tells the worker, which may be setting up.
    late, early = Member.parse("W0_0#1"), Member.parse("W0_1#1")
    run.board.verdicts.propose(verdict(1, early, THIRD, FOURTH))
    for member in (late, early):
        run.start(member)
    view = run.board.verdicts.newest().view
    first, *others = view.members
    for each in others:
        run.board.end.reach(view, each)
    # In which its agent looks: if it took the run for over by now, the worker would end too early.
    time.sleep(DURATIONS.silence / 4)
    over = time.monotonic()
    run.board.end.reach(view, first)
    assert run.ended(late) == DONE
    assert time.monotonic() - over >= DURATIONS.silence
    assert not run.is_running(late)
    assert run.board.failures.death(late) is None
    assert run.is_running(early)


def test_a_worker_that_has_failed_at_the_end_of_a_run_without_it_is_no_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has lost the store, which ends with the run, before its agent ends it."""
    late, seen, own, is_reached = Member.parse("W0_0#1"), CONTEXT.Event(), os.getpid(), EndBoard.is_reached

    def look(board: EndBoard, view: View) -> bool:
        found = is_reached(board, view)
        if found and os.getpid() != own:
            seen.set()
        return found

    def fail() -> int:
        seen.wait()
        return STOPPED

    monkeypatch.setattr(EndBoard, "is_reached", look)
    run.board.verdicts.propose(verdict(1, THIRD, FOURTH))
    run.start(late, fail)
    view = run.board.verdicts.newest().view
    for each in view.members:
        run.board.end.reach(view, each)
    assert run.ended(late) == DONE
    assert run.board.failures.death(late) is None


@pytest.mark.parametrize("status", [3, FENCED])
def test_a_worker_of_the_view_that_ends_is_reported_whatever_it_says(run: Run, status: int) -> None:
    run.start(FIRST, lambda: status)
    assert run.ended(FIRST) == status
    assert run.board.failures.death(FIRST).reason == f"ended with status {status}"
    assert run.board.failures.alarm(0) is not None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("this is what happened"), "this is what happened"),
        (MemoryError(), "recycle: this worker ends for want of memory; raise ulimit -v"),
    ],
)
def test_a_worker_that_raises_ends_with_status_1(
    run: Run, capfd: pytest.CaptureFixture[str], error: Exception, said: str
) -> None:
    def fail() -> int:
        raise error

    run.start(FIRST, fail)
    assert run.ended(FIRST) == 1
    assert run.board.failures.death(FIRST).reason == "ended with status 1"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("status", [*GOOD, FENCED, STOPPED])
def test_a_worker_that_something_ends_in_the_middle_is_dead_whatever_its_status_says(run: Run, status: int) -> None:
    run.board.verdicts.propose(verdict(1, FIRST, SECOND))
    run.start(FIRST, lambda: os._exit(status))
    assert run.ended(FIRST) == CUT_SHORT
    assert run.board.failures.death(FIRST).reason == "ended before it was done"
    assert run.board.failures.alarm(1) is not None


def test_a_run_that_ended_well_and_a_fenced_worker_are_no_failures(run: Run) -> None:
    run.board.verdicts.propose(verdict(1, SECOND, THIRD))
    run.start(FIRST, lambda: FENCED)
    run.start(SECOND, lambda: 0)
    assert (run.ended(FIRST), run.ended(SECOND)) == (FENCED, 0)
    assert (run.board.failures.death(FIRST), run.board.failures.death(SECOND)) == (None, None)
    assert (run.board.failures.alarm(0), run.board.failures.alarm(1)) == (None, None)


def test_an_agent_that_has_long_not_needed_the_store_finds_the_one_that_there_is(
    run: Run, eventually: Eventually
) -> None:
    gone = MemoryStore()
    gone.lose()
    stores: list[Store] = [gone]
    run.start(FIRST)
    eventually(lambda: run.board.beats.counts([FIRST])[FIRST] > 0)
    # It speaks for nobody, so it needs none of them before its worker is dead.
    run.start(SECOND, connect=lambda: stores.pop() if stores else run.connect())
    eventually(lambda: len(run.board.beats.homes([Participant(SECOND)])) == 1)
    send_signal(run.workers[SECOND], signal.SIGKILL)
    eventually(lambda: run.board.failures.death(SECOND) is not None)


def test_an_agent_that_waits_for_the_store_is_seen_to_live_until_it_dies(run: Run, eventually: Eventually) -> None:
    run.start(FIRST, connect=lambda: time.sleep(300))
    with closing(HostSocket(run.token)) as host:
        door = host.door_of_agent(Participant(FIRST))
        eventually(door.is_held)
        run.agents[FIRST].kill()
        eventually(lambda: not door.is_held())


def test_an_agent_outlives_the_store_and_ends_with_its_worker(run: Run, served_apart, eventually: Eventually) -> None:
    run.start(FIRST)
    eventually(lambda: run.board.beats.counts([FIRST])[FIRST] > 0)
    served_apart[1]()
    with pytest.raises(StoreLost):
        run.board.verdicts.newest()
    time.sleep(4 * DURATIONS.beat)
    assert run.agents[FIRST].is_alive()
    assert run.is_running(FIRST)
    send_signal(run.workers[FIRST], signal.SIGKILL)
    assert run.ended(FIRST) == signal.SIGKILL


def test_a_stopped_worker_that_was_declared_dead_is_killed_by_its_agent(run: Run) -> None:
    # Where it is asked for as seldom as of others, the run ends before, and its store.
    run.start(FIRST)
    send_signal(run.workers[FIRST], signal.SIGSTOP)
    run.board.declare_dead([Death(str(FIRST), "has given no sign of life", "heartbeat", 0.0)], "somebody")
    run.agents[FIRST].join(120)
    assert run.agents[FIRST].exitcode == signal.SIGKILL


def test_a_stopped_worker_without_which_the_others_went_on_is_killed_by_its_agent(
    run: Run, eventually: Eventually
) -> None:
    run.start(FIRST)
    counts = set()

    def has_looked() -> bool:
        counts.add(run.board.beats.of_hosts([host_name()]).get(host_name()))
        return len(counts) > 2

    eventually(has_looked)
    send_signal(run.workers[FIRST], signal.SIGSTOP)
    run.board.verdicts.propose(verdict(1, SECOND, THIRD))
    run.agents[FIRST].join(120)
    assert run.agents[FIRST].exitcode == signal.SIGKILL


@pytest.mark.parametrize("older", [False, True])
def test_that_nothing_is_in_the_store_or_an_older_view_kills_no_worker(run: Run, older: bool) -> None:
    later, store = Member.parse("W0_0#1"), run.connect()
    before = store.get("view")
    assert before is not None
    run.board.verdicts.propose(verdict(1, later, SECOND))
    for member in (later, SECOND):
        run.start(member)
        # So its agent asks at each look whether the others went on without it.
        send_signal(run.workers[member], signal.SIGSTOP)
    attacked = time.monotonic() + 4 * DURATIONS.agents_beat
    while time.monotonic() < attacked:
        if older:
            store.set("view", before)
        else:
            store.delete("view")
        time.sleep(DURATIONS.beat)
    assert all(map(run.is_running, (later, SECOND)))
    # Somebody has put it back, or does so now.
    assert run.board.verdicts.newest() == Board(store, run.token).verdicts.newest() == verdict(1, later, SECOND)


@pytest.mark.parametrize("end", [3, FENCED, -signal.SIGKILL])
def test_what_a_worker_leaves_behind_ends_with_it(run: Run, end: int) -> None:
    heard, told = os.pipe()

    def leave_some() -> int:
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(300)
            os._exit(0)
        os.wait()
        if end < 0:
            os.kill(os.getpid(), -end)
        return end

    run.start(FIRST, leave_some)
    os.close(told)
    assert run.board.failures.wait_gone(Participant(FIRST), 120)
    # Nobody has the other end any more but the agent, which ends.
    assert os.read(heard, 1) == b""
    assert run.ended(FIRST) == abs(end)
    os.close(heard)


def test_what_an_agent_had_started_before_its_worker_stays(run: Run) -> None:
    heard, told = os.pipe()
    go_on, end = os.pipe()

    def agent() -> None:
        if os.fork() == 0:
            os.close(end)
            os.read(go_on, 1)
            os.write(told, b"x")
            os._exit(0)
        os._exit(abs(run_agent(FIRST, lambda: 3, run.connect, run.token, DURATIONS)))

    process = os.fork()
    if process == 0:
        agent()
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    os.close(end)
    assert os.read(heard, 1) == b"x"


@pytest.mark.parametrize("status", GOOD)
def test_what_a_worker_has_started_outlives_its_good_end(run: Run, status: int) -> None:
    heard, told = os.pipe()
    go_on, end = os.pipe()

    def relay() -> None:
        os.close(end)
        os.close(told)
        time.sleep(300)

    def leave_some() -> int:
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
            os.close(end)
            os.read(go_on, 1)
            os.write(told, b"x")
            os._exit(0)
        return status

    run.start(FIRST, leave_some, access=HostAccess(LOOPBACK, relay))
    os.close(told)
    assert run.ended(FIRST) == status
    os.close(end)
    assert [os.read(heard, 1) for _ in range(3)] == [b"x", b"x", b""]
    os.close(heard)


def test_who_has_ended_as_it_should_is_not_said_to_be_gone(run: Run) -> None:
    run.start(FIRST, lambda: 0)
    assert run.ended(FIRST) == 0
    assert not run.board.failures.wait_gone(Participant(FIRST), 0.01)
