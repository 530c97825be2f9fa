"""The launcher's supervisor: real processes that only wait to be ended, a real store, and the test in others' place."""

import os
import signal
import threading
import time
from contextlib import suppress

import msgspec
import pytest

from harness.examples import paper_job
from harness.memory_store import MemoryStore
from harness.processes import is_running, send_signal
from harness.started import wait_until
from recycle.control.board.board import Board, JoinBoard
from recycle.control.board.heartbeat_board import Beat
from recycle.control.board.joinfile import JOIN_FILE, JoinFile
from recycle.control.host.agent import DONE, FENCED
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Verdict
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, View
from recycle.control.store import local_store
from recycle.errors import EndedBySignal, RunFailed
from recycle.faults.menu import Fault, Faults, Kind
from recycle.job import Server
from recycle.record.recording import InstantLine, IterationLine, ViewLine
from recycle.record.reporting import Event
from recycle.runtime.launch.process.messages import ReportMessage
from recycle.runtime.launch.process.report_channel import LauncherConnection, ReportInbox
from recycle.runtime.launch.supervise.setting import Setting
from recycle.runtime.launch.supervise.supervisor import Supervisor
from recycle.runtime.launch.supervise.watches import ElsewhereWatch
from recycle.runtime.net.endpoint import Endpoint
from recycle.state.directory import KeeperDirectory, KeeperHome
from recycle.state.redundancy import Redundancy

JOB = paper_job(pipelines=2, stages=1, micro_batches=2, released=0)
OURS = (Member(Server(0, 0), 0), Member(Server(1, 0), 0))
THEIRS = (Member(Server(0, 0), 1), Member(Server(1, 0), 1))
DURATIONS = Durations(beat=0.1, silence=4.0, hang=10.0, answer=10.0)


def setting_of(folder, restarts=0):
    view = View(0, OURS)
    return Setting(
        JOB, view, 0, "memory", {}, DURATIONS, "127.0.0.1", Faults(), folder, lambda: False, restarts=restarts
    )


class Launched:
    """A run whose servers do nothing until they are killed."""

    def __init__(self, folder, restarts=0) -> None:
        self.error: str | None = None
        self.events: list[Event] = []
        self._folder = folder
        (folder / "pids").mkdir()

        def serve(member, _):
            (folder / "pids" / str(member)).write_text(str(os.getpid()))
            signal.pause()
            return 1

        self._supervisor = Supervisor(setting_of(folder, restarts), serve, self.events.append)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(lambda: (folder / JOIN_FILE).exists())
        door = JoinFile.read(folder / JOIN_FILE)
        self.board = Board(Endpoint(door.host, door.port, door.token).connect(), door.token)

    def kill_all(self) -> None:
        for member in OURS:
            self.kill(member)

    def kill(self, member: Member) -> None:
        path = self._folder / "pids" / str(member)
        wait_until(lambda: path.exists() and path.read_text())
        send_signal(int(path.read_text()), signal.SIGKILL)

    def replace(self) -> None:
        """Others have taken the places of all servers."""
        self.board.verdicts.propose(Verdict(1, tuple(map(str, THEIRS)), 3))

    def is_going_after(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return self._thread.is_alive()

    def end(self) -> str | None:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.error

    def _run(self) -> None:
        try:
            self._supervisor.run()
        except RunFailed as error:
            self.error = str(error)


@pytest.fixture
def launched(tmp_path):
    return Launched(tmp_path)


def test_a_run_goes_on_after_all_servers_of_the_launcher_were_replaced_from_elsewhere(launched):
    launched.replace()
    launched.kill_all()
    giving = threading.Event()

    def give_signs():
        count = 0
        while not giving.wait(DURATIONS.beat):
            count += 1
            for member in THEIRS:
                launched.board.beats.settle(Participant(member), f"host of {member}")
                launched.board.beats.glance(f"host of {member}", Beat(count))

    thread = threading.Thread(target=give_signs)
    thread.start()
    assert launched.is_going_after(1.5 * DURATIONS.silence)
    giving.set()
    thread.join()
    # The launcher waits for those who report to it, and these do not: its store may end while the last one looks.
    with suppress(StoreLost):
        for each in THEIRS:
            launched.board.end.reach(View(1, THEIRS), each)
    assert launched.end() is None


def test_a_store_that_is_lost_again_as_soon_as_it_is_back_comes_back_again(launched, monkeypatch):
    supervisor, lost = launched._supervisor, []
    await_store, connect = supervisor._await_store, Endpoint.connect

    def lose(pid):
        lost.append(pid)
        send_signal(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid))

    def lose_next():
        found = await_store()
        if len(lost) < 2:
            lose(supervisor._store_pid)
        return found

    monkeypatch.setattr(supervisor, "_await_store", lose_next)
    monkeypatch.setattr(Endpoint, "connect", lambda self, patience=1.0: connect(self, patience))
    lose(supervisor._store_pid)
    wait_until(lambda: supervisor._store_pid not in lost or not launched.is_going_after(0))
    launched.kill_all()
    assert "no server reached the end of the run" in str(launched.end())


def test_no_number_of_a_life_is_given_again_after_a_loss_of_the_store(tmp_path, monkeypatch):
    def keep_count(joining, member):
        counts(joining, member)
        kept.append(member)

    counts, kept = JoinBoard.keep_count, []
    monkeypatch.setattr(JoinBoard, "keep_count", keep_count)
    launched, server = Launched(tmp_path, restarts=1), OURS[0].server
    for life in range(2):
        launched.kill(Member(server, life))
    send_signal(launched._supervisor._store_pid, signal.SIGKILL)
    wait_until(lambda: Member(server, 1) in kept)
    assert launched._supervisor._connect().joining.new_incarnation(server) > 1
    launched.kill(OURS[1])
    assert launched.end() is not None


def test_a_host_that_has_joined_since_the_run_began_is_still_in_the_directory_of_a_new_store(launched):
    def is_described():
        with suppress(StoreLost):
            return supervisor._store_pid != lost and supervisor._connect().description() is not None
        return False

    supervisor, lost = launched._supervisor, launched._supervisor._store_pid
    first, now = (
        KeeperDirectory((KeeperHome(host, "10.0.0.1", 2000),), Redundancy(1, 1), {"W0_0": 0, "W1_0": 0})
        for host in ("lost", "joined")
    )
    before = MemoryStore()
    now.tell(before, supervisor._token)
    supervisor._keeper.directory, supervisor._began = first, time.monotonic()
    send_signal(lost, signal.SIGKILL)
    wait_until(is_described)
    store = supervisor._setting.endpoint(supervisor._port, supervisor._token).connect()
    # As members do, which do not write over what they find.
    Board(store, supervisor._token).tell_again(Board(before, supervisor._token).probe())
    found = KeeperDirectory.read(store, supervisor._token)
    launched.kill_all()
    assert launched.end() is not None
    assert found == now


def test_a_store_that_was_stopped_for_a_while_is_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(local_store, "STOPPED", 0.1)
    launched = Launched(tmp_path)
    launched.replace()
    store = launched._supervisor._store_pid
    send_signal(store, signal.SIGSTOP)
    launched.kill_all()
    threading.Timer(2.5, send_signal, (store, signal.SIGCONT)).start()
    # Those who go on are elsewhere.
    assert launched.is_going_after(4)
    with suppress(StoreLost):
        for each in THEIRS:
            launched.board.end.reach(View(1, THEIRS), each)
    assert launched.end() is None


def test_servers_from_elsewhere_that_fall_silent_do_not_keep_the_launcher_waiting(launched):
    launched.replace()
    launched.kill_all()
    assert "no server reached the end of the run" in launched.end()


def test_as_long_as_one_of_its_own_is_in_the_view_the_launcher_judges_nobody_elsewhere(launched, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ElsewhereWatch, "look", pytest.fail)
        launched.board.verdicts.propose(Verdict(1, (str(THEIRS[0]), str(OURS[1])), 3))
        launched.kill(OURS[0])
        assert launched.is_going_after(2)
    launched.kill(OURS[1])
    assert launched.end() is not None


def test_who_comes_too_late_to_a_run_that_others_have_kept_fails_nothing(tmp_path):
    def serve(member, access):
        send = LauncherConnection(access.watch, access.endpoint.token, str(member), os.getpid())
        send(ReportMessage(msgspec.json.encode(InstantLine("end", 0.0, str(member.server), "too late"))))
        # The launcher listens no more once the run is over.
        wait_until((tmp_path / str(member.server)).exists, 60)
        board = access.endpoint.board()
        board.verdicts.propose(Verdict(1, tuple(map(str, THEIRS)), 3))
        for each in THEIRS:
            board.end.reach(View(1, THEIRS), each)
        return FENCED

    def hear(line):
        heard.append(line.text)
        (tmp_path / line.server).touch()

    heard = []
    Supervisor(setting_of(tmp_path), serve, hear).run()
    assert set(heard) == {"too late"}


def test_what_servers_said_last_is_heard_though_they_have_ended_before(tmp_path, monkeypatch):
    said = [IterationLine(str(each.server), step, 0.1, [], 1) for each in OURS for step in range(100)]

    def serve(member, access):
        send = LauncherConnection(access.watch, access.endpoint.token, str(member), os.getpid())
        for each in said:
            if each.server == str(member.server):
                send(ReportMessage(msgspec.json.encode(each)))
        return DONE

    take_all = ReportInbox.take_all
    # Nothing is heard before the end, as where the launcher was stopped.
    monkeypatch.setattr(ReportInbox, "take_all", lambda self, timeout: () if timeout else take_all(self, 0))
    heard = []
    Supervisor(setting_of(tmp_path), serve, heard.append).run()
    assert sorted(heard, key=lambda each: (each.server, each.step)) == said


def test_a_run_that_was_told_to_end_waits_only_until_all_have_said_that_they_do(tmp_path):
    def serve(member, access):
        told, name = list[int](), str(member.server)
        signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
        (tmp_path / name).write_text(str(os.getpid()))
        send = LauncherConnection(access.watch, access.endpoint.token, str(member), os.getpid())
        view = ViewLine(0, 0.0, [name], [], 0, "", "memory", 1, 1.0, "")
        send(ReportMessage(msgspec.json.encode(view)))
        # An event would wait for itself, if the signal came while it locks.
        while not told:
            time.sleep(0.01)
        send(ReportMessage(msgspec.json.encode(IterationLine(name, 7, 0.1, [], 1))))
        send(ReportMessage(msgspec.json.encode(InstantLine("end", 0.0, name, "told to end"))))
        # Like one that is taken apart for long.
        while True:
            signal.pause()

    begun, faults = [], Faults((Fault(Kind.AGENT_KILL, (OURS[0].server,), step=8),))
    kinds = set()

    def watch(event):
        kinds.add(getattr(event, "kind", ""))
        if isinstance(event, ViewLine):
            begun.append(event)
            if len(begun) == len(OURS):
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(EndedBySignal, match="told to end"):
        Supervisor(setting_of(tmp_path)._replace(faults=faults), serve, watch).run()
    assert "fault" not in kinds
    wait_until(lambda: not any(is_running(int((tmp_path / str(each.server)).read_text())) for each in OURS))


def test_where_a_run_goes_on_what_was_due_in_an_earlier_iteration_does_not_happen_again(tmp_path):
    # The one that tells of the view is started last, so all are known by then.
    killed, kept = (each.server for each in OURS)
    over, due = Fault(Kind.AGENT_KILL, (kept,), step=1), Fault(Kind.AGENT_KILL, (killed,), step=5)

    def serve(member, access):
        send = LauncherConnection(access.watch, access.endpoint.token, str(member), os.getpid())
        if member.server == killed:
            signal.pause()
        view = ViewLine(3, 0.0, [str(killed), str(kept)], [], 5, "", "checkpoint", 1, 1.0, "")
        send(ReportMessage(msgspec.json.encode(view)))
        wait_until((tmp_path / "due").exists, 60)
        return DONE

    def watch(event):
        if isinstance(event, InstantLine):
            said.append((event.kind, event.text))
            (tmp_path / "due").touch()

    said = []
    Supervisor(setting_of(tmp_path)._replace(faults=Faults((over, due))), serve, watch).run()
    assert said == [("fault", str(due))]


def test_a_run_whose_servers_are_all_dead_is_over(launched):
    launched.kill_all()
    assert "W0_0#0 ended with -9" in launched.end()


def test_a_crashed_server_is_started_again_as_another_member_until_it_has_crashed_too_often(tmp_path):
    launched = Launched(tmp_path, restarts=2)
    for life in range(3):
        launched.kill(Member(OURS[0].server, life))
    wait_until(lambda: launched.events)
    assert "W0_0 has crashed more than 2 times within an hour" in launched.events[0].text
    assert not (tmp_path / "pids" / "W0_0#3").exists()
    # Nobody of the view is left then.
    launched.kill(OURS[1])
    assert "no server reached the end of the run" in launched.end()
