"""The supervisor: the launcher's part in a run that survives failures.

It starts the store and the servers, passes on what they tell, carries out the faults that are its to carry out, and
says in the end whether the run kept its promise. No decision about the run is made here.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from recycle.control.board.board import Board
from recycle.control.board.joinfile import JOIN_FILE, JoinFile, new_token
from recycle.control.host.agent import DONE, FENCED
from recycle.control.membership.doors import HostDoor
from recycle.control.membership.errors import StoreLost
from recycle.control.membership.messages import Description, Opening
from recycle.control.membership.participant import Participant, first_rank, members_of
from recycle.control.membership.view import Member
from recycle.control.store.local_store import door_of_store
from recycle.errors import EndedAtOnce, EndedBySignal, RunFailed
from recycle.faults.fired import FiredFile
from recycle.faults.menu import Fault, Kind
from recycle.holding import sole_units, units_of, units_text
from recycle.job import Server
from recycle.record.recording import InstantLine, IterationLine, ViewLine
from recycle.record.reporting import Event
from recycle.runtime.errors import RunError
from recycle.runtime.launch.meet.claiming import OTHERS_GO_ON
from recycle.runtime.launch.process.fork_server import ForkEvent, ForkServer
from recycle.runtime.launch.process.messages import ErrorMessage, FailureMessage, ReportMessage
from recycle.runtime.launch.process.outcome import (
    before_run,
    goes_on,
    is_over,
    live_elsewhere,
    ranks_at_end,
    was_kept,
)
from recycle.runtime.launch.process.report_channel import LAST, Received, ReportInbox
from recycle.runtime.launch.process.restarts import Restarts, has_crashed
from recycle.runtime.launch.process.signals import EndSignals, tell_to_leave
from recycle.runtime.launch.supervise.cancellation import Cancellation
from recycle.runtime.launch.supervise.host_keeper import HostKeeper
from recycle.runtime.launch.supervise.news import News
from recycle.runtime.launch.supervise.replacements import Replacements
from recycle.runtime.launch.supervise.risks import risks
from recycle.runtime.launch.supervise.setting import RunAccess, Setting
from recycle.runtime.launch.supervise.watches import ElsewhereWatch
from recycle.runtime.recover.view_reports import now

LOOK, REST = 0.02, 0.2
"""Seconds between two looks while something is to be done at a certain time, and otherwise."""

FIRED = "faults.jsonl"


class Supervisor:
    """Runs the processes of a run.

    Args:
        setting: what the run is.
        serve: what the process of a member or of one of its ranks does, forked from here; it gives the exit status.
        watch: called with every event.
    """

    def __init__(
        self, setting: Setting, serve: Callable[[Member, RunAccess], int], watch: Callable[[Event], None]
    ) -> None:
        self._setting = setting
        self._watch = watch
        keeping = setting.keeping
        self._token = (keeping.slot.token if keeping is not None else "") or new_token()
        self._inbox = ReportInbox(setting.address, self._token)

        def start(name: str, port: int) -> int:
            member, rank = Participant.parse(name, setting.ranks)
            return serve(member, RunAccess(setting.endpoint(port, self._token), self._inbox.address, rank))

        place: str | HostDoor = setting.address or door_of_store(self._token)
        if setting.meeting is not None:
            place = setting.meeting.start.host
        door = None if keeping is None else keeping.slot.listener
        self._fork_server = ForkServer(place, start, door, [self._inbox.fileno()])
        self._keeper = HostKeeper(self._token, self._fork_server)
        self._inbox.open()
        self._news = News(setting.folder, f"{setting.job.name}, the launcher", watch)
        self._fired = FiredFile(setting.folder / FIRED, self._news.warn)
        self._port = self._store_pid = 0
        self._store_due: float | None = None
        self._board: Board | None = None
        self._agents: dict[Participant, int] = {}
        self._workers: dict[Participant, int] = {}
        self._ended: dict[Participant, int] = {}
        self._ending: set[Participant] = set()
        # Members whose end was answered with another life, or with none.
        self._crashed: set[Member] = set()
        self._refused: set[Participant] = set()
        self._replacements = Replacements(
            self._connect,
            lambda each: self._fork_server.start_server(str(each), self._port),
            lambda server, text: self._news.remark(text, server),
            setting.durations.silence,
        )
        self._struck: set[Member] = set()  # by the launcher, and perhaps nobody has heard of it yet
        self._began, self._step, self._has_trained = 0.0, setting.step, False
        self._due = setting.faults
        self._faults = list(self._due.of_launcher())
        self._wakes: list[tuple[float, int]] = []
        self._reasons: list[str] = []
        self._elsewhere_watch = ElsewhereWatch(setting.store_silence, setting.durations)
        self._restarts = Restarts(setting.restarts)
        self._signals = EndSignals(self._pass_on)
        self._call_off = Cancellation(self._signals, self._news.tell)

    def run(self) -> None:
        """Wait for the end of the run.

        Raises:
            UserError: a server cannot use what it was given.
            RunFailed: the run did not come to its end: the message says why.
            EndedBySignal: it was told to end, or its servers here were.
        """
        setting = self._setting
        try:
            for dead in sorted(set(setting.job.servers()) - set(setting.view.servers)):
                self._news.tell(InstantLine("failure", now(), str(dead), f"{dead} is dead"))
            with self._signals:
                self._open_store()
                for each in setting.own:
                    self._fork_server.start_server(str(each), self._port)
                while not self._is_over():
                    self._look()
                for received in self._inbox.take_rest(0.0 if self._over - self._ended.keys() else LAST):
                    self._hear(received)
            self._require_kept()
            for fault in self._fired.unfired(self._due):
                self._news.remark(f"{fault}: it did not happen, because its server or its instruction was not there")
            if setting.meeting is not None:
                setting.meeting.leave(0)
                setting.meeting.dismiss(ranks_at_end(setting.endpoint(self._port, self._token), setting.servers))
        except EndedAtOnce:
            raise
        except Exception as error:
            if setting.cluster and self._board and goes_on(setting.endpoint(self._port, self._token)):
                error.add_note(OTHERS_GO_ON)
            raise
        finally:
            self._keeper.end(over=self._board is not None and is_over(self._board), trained=self._has_trained)
            self._fork_server.end()
            self._inbox.close()
            self._news.close()

    def _look(self) -> None:
        """Take in what has happened since the last look, or happens in a moment, and do what is due."""
        for received in self._inbox.take_all(LOOK if self._is_busy else REST):
            self._hear(received)
        while (event := self._fork_server.next_event(0)) is not None:
            self._learn(event)
        for text in self._keeper.look():
            self._news.remark(text)
        self._do_faults()
        self._mend_store()
        self._board = self._replacements.look(self._board if self._store_due is None else None) or self._board
        self._follow_ranks()
        if self._setting.meeting is None and self._board is not None and self._store_due is None:
            self._call_off.tell_elsewhere(self._board, members_of(self._agents))
        self._call_off.tell_here(self._workers_here)

    @property
    def _is_busy(self) -> bool:
        """Whether something is to be done at a certain time, or processes are about to end."""
        return bool(self._faults or self._wakes or self._ended) or self._store_due is not None

    @before_run()
    def _open_store(self) -> None:
        """Have a store, and all processes of the run at it."""
        meeting = self._setting.meeting
        if self._setting.cluster is not None:
            self._port = 0
        elif meeting is not None and meeting.start.served:
            self._port = meeting.start.port
        else:
            if meeting is not None:
                # Here an address that cannot be used is an error of the user's, and in the fork server one of ours.
                meeting.start.listen().close()
            self._fork_server.serve_store(0 if meeting is None else meeting.start.port)
            if why := self._await_store():
                remedy = "; give an address of this machine" if self._setting.address else ""
                raise RunError(f"the store did not start on {self._setting.host}: {why}{remedy}")
        if meeting is not None:
            meeting.receive()
        for text in self._keeper.open(self._setting):
            self._news.tell(InstantLine("memory", now(), None, text))
        self._open_board()
        # A store that takes the place of a lost one is found at the same address.
        endpoint = self._setting.endpoint(self._port, self._token)
        where = self._setting.host, endpoint.port, self._inbox.port, self._token, endpoint.prefix, self._setting.cluster
        JoinFile(*where).write(self._setting.folder / JOIN_FILE)
        if meeting is not None:
            kept = (directory := self._keeper.directory) is not None and directory.survived > 0
            held = [units_of(self._setting.job, each) for each in self._setting.servers]
            for text in risks(meeting.hosts, held, self._setting.ranks, etcd=meeting.cluster is not None, kept=kept):
                self._news.remark(text)
            meeting.admit(self._token, (self._setting.host, self._inbox.port))

    def _await_store(self) -> str:
        """Until there is a store, or none; says why there is none."""
        while (event := self._fork_server.next_event(30)) is not None:
            self._learn(event)
            if event.name == "store" and event.kind != "ended":
                return event.reason
        return "nothing is heard of it"

    def _learn(self, event: ForkEvent) -> None:
        if event.name == "store":
            if event.kind == "started":
                self._store_pid, self._port = event.pid, event.port
            elif event.kind == "ended":
                self._store_due = time.monotonic() + self._setting.durations.silence
                self._news.remark("the store's process is gone")
            return
        if event.name == "keeper":
            for text in self._keeper.learn(event):
                self._news.remark(text)
            return
        participant = Participant.parse(event.name, self._setting.ranks)
        if event.kind == "started":
            self._agents[participant] = event.pid
        else:
            if event.kind == "refused":
                self._refuse(participant, event.reason)
                return
            self._ended[participant] = event.status
            if has_crashed(event.status) and participant.member not in self._crashed:
                self._crashed.add(participant.member)
                self._replace_crashed(participant.member)

    def _refuse(self, participant: Participant, reason: str) -> None:
        """The system has not got what a process takes: at the start there is no run without it, and later there is."""
        text = f"{participant} cannot be started: {reason}; give the run more memory, descriptors or processes"
        if not self._began:
            raise RunError(text)
        if participant not in self._refused:
            self._refused.add(participant)
            self._news.remark(f"{text}; it is tried until it can", participant.member.server)
        self._replacements.want(participant.member.server, lambda _: [participant], at_once=False)

    def _connect(self) -> Board:
        return self._setting.endpoint(self._port, self._token).board()

    def _open_board(self) -> None:
        setting = self._setting
        store = setting.endpoint(self._port, self._token).connect()
        self._board = Board(store, self._token)
        # Once the run has begun, hosts may have taken the places of others. Members know, and tell it again.
        if self._keeper.directory is not None and not self._began:
            self._keeper.directory.tell(store, self._token)
        self._board.describe(Description(setting.fingerprint, setting.job))
        for member in members_of(self._agents):
            if member.incarnation:
                self._board.joining.keep_count(member)
        if not self._began:
            self._board.verdicts.open(Opening.of(setting.first_view, setting.restore))

    def _hear(self, received: Received) -> None:
        participant = Participant.parse(received.sender.name, self._setting.ranks)
        self._workers[participant] = received.sender.pid
        match received.message:
            case ReportMessage(content):
                self._note(participant, msgspec.json.decode(content, type=Event))
            case ErrorMessage() as message:
                if message.run_failed or not self._began:
                    raise message.as_error()
                # What was fit for the start may be wrong with one host now, and the others go on without it.
                server = participant.member.server
                self._news.remark(f"{participant.rank.of(server)} failed: {message.text}", server)
            case FailureMessage() as message:
                self._news.tell_failure(participant, message)

    def _note(self, sender: Participant, event: Event) -> None:
        if isinstance(event, ViewLine):
            if not self._began:
                self._began = time.monotonic()
                # Where the run goes on, only now is it known from where.
                self._due = self._due.since(event.step)
                self._faults = list(self._due.of_launcher())
            self._step = event.step
        elif isinstance(event, IterationLine):
            self._step, self._has_trained = max(self._step, event.step + 1), True
        elif isinstance(event, InstantLine) and event.kind == "end":
            self._ending.add(sender)
            self._reasons += [event.text] if event.text not in self._reasons else []
        self._watch(event)

    # How a run ends.

    def _is_over(self) -> bool:
        """Whether nobody who is in the run is on the way any more.

        Servers that joined from elsewhere count as well: their processes are not the launcher's, and the store tells
        how they ended.
        """
        if not self._over:
            return False
        board = self._board if self._store_due is None else None
        try:
            verdict = board.verdicts.newest() if board else None
            members = verdict.view.members if verdict else self._setting.view.members
            here, going = members_of(self._agents), self._going
            others = [each for each in members if each not in here]
            if board is None or verdict is None or verdict.stop or not others:
                return not going or (here - going).issuperset(members)
            if not going.isdisjoint(members):
                return False
            self._elsewhere_watch.look(board, verdict.view, others, self._setting.ranks)
            return board.end.is_reached(verdict.view) or all(board.failures.death(each) for each in others)
        except StoreLost:
            return not (self._renew_board() or self._going)

    def _renew_board(self) -> bool:
        """Where the store was stopped, and lives, it is found again; says whether it is."""
        with suppress(StoreLost):
            self._board = self._setting.endpoint(self._port, self._token).board(self._setting.durations.silence)
            return True
        return False

    def _pass_on(self) -> bool:
        """From a signal's handler: tell the workers at once, as the next look may be most of an iteration away."""
        for each in self._workers_here if self._began else ():
            tell_to_leave(each)
        return self._began > 0

    @property
    def _workers_here(self) -> list[int]:
        """The processes of those that were started here, have said who they are, and have not ended."""
        return [self._workers[each] for each in self._agents.keys() & self._workers.keys() - self._ended.keys()]

    @property
    def _going(self) -> set[Member]:
        """The members that have a process here which has not ended."""
        return members_of(self._agents.keys() - self._over)

    @property
    def _over(self) -> set[Participant]:
        """Whose processes have ended; where the run was told to, those too that have said so as the last thing they do.

        To take a process apart can take the system most of a second.
        """
        return self._ended.keys() | (self._ending if self._signals.number else set())

    def _require_kept(self) -> None:
        if any(status == DONE for status in self._ended.values()):
            return
        if self._reasons and self._signals.number:
            raise EndedBySignal("; ".join(self._reasons), self._signals.number)
        with suppress(StoreLost):
            # A server that came too late for it has given a reason, too.
            if self._board is not None and was_kept(self._board):
                return
        if self._reasons:
            raise RunFailed("; ".join(self._reasons))
        ends = ", ".join(f"{each} ended with {status}" for each, status in self._ended.items())
        source = "what is in memory" if self._keeper.is_of_use(trained=self._has_trained) else "the last checkpoint"
        raise RunFailed(f"no server reached the end of the run: {ends}; go on from {source} with --resume")

    # What the launcher does to the run, and for it.

    def _do_faults(self) -> None:
        time_now = time.monotonic()
        for due, pid in [each for each in self._wakes if each[0] <= time_now]:
            self._wakes.remove((due, pid))
            _signal(pid, signal.SIGCONT)
        # A server that is started while all are about to leave would only be in their way.
        if not self._began or self._signals.number:
            return
        for fault in list(self._faults):
            if (fault.at is not None and time_now - self._began >= fault.at) or (
                fault.step is not None and self._step >= fault.step
            ):
                self._do(fault)

    def _do(self, fault: Fault) -> None:
        targets = self._targets(fault)
        if targets is None:
            return
        self._faults.remove(fault)
        live = live_elsewhere(self._board, members_of(self._ended) | self._struck)
        if why := self._setting.faults.why_left_out(fault, self._setting.job, live):
            self._news.remark(f"{fault}: left out, because {why}")
            return
        if not targets and fault.kind is not Kind.JOIN:
            self._news.remark(f"{fault}: no live process is left for it")
            return
        self._fired.write(fault, time.monotonic_ns())
        self._news.tell(InstantLine("fault", now(), str(fault.servers[0]) if fault.servers else None, str(fault)))
        for server in fault.servers if fault.kind is Kind.JOIN else ():
            self._start_replacement(server)
        if fault.kind is Kind.KILL:
            self._struck |= {each for each in members_of(self._agents) if each.server in fault.servers}
        for pid in targets:
            _signal(pid, signal.SIGSTOP if fault.kind is Kind.STOP else signal.SIGKILL)
            if fault.duration is not None:
                self._wakes.append((time.monotonic() + fault.duration, pid))

    def _targets(self, fault: Fault) -> list[int] | None:
        """The processes that get a fault's signal; None while one of them has not said which it is."""
        if fault.kind is Kind.JOIN:
            return []
        if fault.kind is Kind.STORE_LOSS:
            return [self._store_pid] if self._store_due is None else []
        lives = [first_rank(server, self._agents) for server in fault.servers]
        alive = [each for each in lives if each is not None and each not in self._ended]
        pids = self._agents if fault.kind is Kind.AGENT_KILL else self._workers
        return [pids[each] for each in alive] if all(each in pids for each in alive) else None

    def _start_replacement(self, server: Server) -> None:
        """Start a new life of a server, as soon as there is a store."""

        def lives(board: Board) -> Sequence[Participant]:
            life = Member(server, board.joining.new_incarnation(server))
            return Participant.all_of(life, self._setting.ranks)

        self._replacements.want(server, lives)

    def _replace_crashed(self, member: Member) -> None:
        """Start a server again, as often as it may be; the last one of a stage always, if there is a checkpoint."""
        server = member.server
        if self._restarts.allow(server, time.monotonic()):
            self._start_again(member)
            return
        if refusal := self._restarts.refusal(server):
            self._news.remark(refusal, server)
        alive = [each.server for each in self._going - members_of(self._ended)]
        alive += live_elsewhere(self._board, members_of(self._agents))
        lost = sole_units(self._setting.job, server, alive)
        if lost and self._setting.durable() and self._restarts.insist(server, self._step):
            text = f"no live server of {units_text(self._setting.job, lost)} is left: {server} is started again"
            self._news.remark(text, server)
            self._start_again(member)

    def _start_again(self, member: Member) -> None:
        """Start the next life of a server: all that is to be started of it here."""
        if self._setting.meeting is None:
            self._start_replacement(member.server)
            return

        def lives(board: Board) -> Sequence[Participant]:
            life = board.joining.next_life(member)
            return [each._replace(member=life) for each in self._setting.own]

        self._replacements.want(member.server, lives)

    def _follow_ranks(self) -> None:
        """Where a rank that was started apart has crashed and is started again, so is this one's rank of its server."""
        if self._setting.meeting is None or self._setting.ranks == 1 or self._board is None:
            return
        for each, status in self._ended.items():
            if status == FENCED and each.member not in self._crashed:
                with suppress(StoreLost):
                    life = self._board.joining.decided_life(each.member)
                    if life is not None:
                        self._crashed.add(each.member)
                        self._fork_server.start_server(str(each._replace(member=life)), self._port)

    def _mend_store(self) -> None:
        """A new store takes the place of one that was lost, when everybody has seen that it is."""
        if self._store_due is not None and time.monotonic() >= self._store_due:
            self._store_due = None
            self._fork_server.serve_store(self._port)
            if why := self._await_store():
                self._store_due = time.monotonic() + self._setting.durations.silence
                self._news.remark(f"the store cannot be started again: {why}; it is tried until it can")
                return
            # One that is lost again at once is mended again.
            with suppress(StoreLost):
                self._open_board()


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, number)
