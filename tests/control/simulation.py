"""Simulated members around real machines and a real board: what their main threads, agents and state do, in any order.

The state is simulated by its history: version r is the tuple of the r iterations that made it, each with the epoch in
which it was computed. So it shows if a stage steps twice, skips a step, or goes on from a version that others undid.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from msgspec.structs import replace

from harness.memory_store import MemoryStore
from recycle.control.board import keys
from recycle.control.board.board import Board
from recycle.control.membership.events import (
    Accuse,
    Action,
    BuildFailed,
    Built,
    Decided,
    Died,
    Event,
    Exit,
    Halted,
    JoinReady,
    Noticed,
    Opened,
    Overdue,
    Paused,
    Prepare,
    Propose,
    PublishReport,
    RaiseAlarm,
    Rebuild,
    Reported,
    Resume,
    Stop,
)
from recycle.control.membership.machine import Actions, Machine, State
from recycle.control.membership.messages import NOTHING, Death, JoinRequest, Opening, Report, Verdict
from recycle.control.membership.view import Member, ServerRank, View
from recycle.job import Job, Server

History = tuple[tuple[int, int], ...]
Process = tuple[Member, int]


class World:
    """The store, all members that ever were, and what an observer of everything knows."""

    def __init__(self, job: Job, ranks: int = 1) -> None:
        self.job = job
        self.ranks = ranks
        self.store = MemoryStore()
        self.board = Board(self.store, "token")
        self.verdicts: dict[int, Verdict] = {}
        self.begun: dict[tuple[int, int], set[Process]] = {}
        # The notice by which all halt before the same iteration, by epoch.
        self.pauses: dict[int, int] = {}
        self.building: dict[int, set[Process]] = {}
        self.resumed: dict[int, History] = {}
        self.durable: dict[int, History] = {}
        self.reached = 0
        self.agents: list[Iterator[None]] = []
        self.rung: dict[int, tuple[Death, ...]] = {}
        self.everyone: list[Simulated] = []
        self.opening = Opening.of(View.among(job.servers()))
        self.board.verdicts.open(self.opening)
        for process in self.processes(self.opening.view):
            Simulated(self, *process).held[0] = ()
        self.look()

    @property
    def running(self) -> list["Simulated"]:
        return [each for each in self.everyone if each.alive]

    def of(self, member: Member, number: int = 0) -> "Simulated":
        return next(each for each in self.everyone if each.process == (member, number))

    def processes(self, view: View) -> list[Process]:
        """All ranks of all members of a view."""
        return [(member, number) for member in view.members for number in range(self.ranks)]

    def is_whole(self, member: Member) -> bool:
        """Whether all ranks of a member are alive."""
        return all(self.of(member, number).alive for number in range(self.ranks))

    def newest(self) -> Verdict | Opening:
        """Where the run is: what its present epoch, or its start, began with."""
        return self.board.verdicts.newest() or self.opening

    @property
    def epoch(self) -> int:
        """Of the run."""
        return self.newest().view.epoch

    def look(self) -> None:
        """Take note of the newest verdict, and hold it against what was noted before."""
        verdict = self.board.verdicts.newest()
        if verdict is None:
            return
        if verdict.epoch not in self.verdicts and verdict.restore == "checkpoint":
            self.reached = verdict.step
        assert self.verdicts.setdefault(verdict.epoch, verdict) == verdict, "an epoch has two verdicts"

    def declare_dead(self, members: Iterable[Member], noticed: str) -> Iterator[None]:
        """What an agent does of its worker, or another host of all that were on one: one request after the other."""
        deaths = {}
        for member in members:
            deaths[member] = self.board.failures.publish_death(Death(str(member), "died", noticed, 0.0))
            yield
        begun = self.newest()
        while begun is not None and (named := [each for each in deaths if begun.view.names(each)]):
            epoch = begun.view.epoch
            for member in named:
                yield
                self.board.failures.tell_deaths(epoch, deaths[member])
            yield
            self.board.failures.raise_alarm(epoch, f"{named[0]} died", "agent")
            yield
            begun = self.board.verdicts.newest(epoch + 1)

    def ring(self, verdict: Verdict) -> Iterator[None]:
        """Who has proposed looks for deaths for all who get the verdict from it; it may die before it does."""
        yield
        if self.board.verdicts.newest() == verdict:
            self.rung[verdict.epoch] = self.board.failures.unheard(verdict)

    def leave_hole(self) -> None:
        """Somebody dies between its entry's number and the entry."""
        self.store.add(keys.log(self.epoch), 1)

    def save_checkpoint(self) -> None:
        """A checkpoint is durable once every stage has written the same version."""
        view = self.newest().view
        members = [self.of(*process) for process in self.processes(view)]
        if not all(each.alive and each.machine.view == view and each.iteration for each in members):
            return
        versions = [
            {version for each in members if each.member.server.stage == stage for version in each.held}
            for stage in range(self.job.depth)
        ]
        for version in set.intersection(*versions):
            self.durable[version] = next(each.held[version] for each in members if version in each.held)

    def join(self, server: Server) -> None:
        member = Member(server, self.board.joining.new_incarnation(server))
        for number in range(self.ranks):
            Simulated(self, member, number)

    def vacant(self) -> list[Server]:
        taken = {member.server for member in self.newest().view.members if self.is_whole(member)}
        return [server for server in self.job.servers() if server not in taken]


class LoggedMachine(Machine):
    """A machine that writes down which events it took notice of, and what it answered."""

    def __init__(self, me: Member, job: Job, rank: ServerRank) -> None:
        super().__init__(me, job, rank)
        self.rank = rank
        self.log: list[tuple[Event, Actions]] = []

    def handle(self, event: Event) -> Actions:
        counts = self._counts(event)
        actions = super().handle(event)
        if counts:
            self.log.append((event, actions))
        return actions

    def require_same_again(self, job: Job) -> None:
        """Another machine answers the same to the same events."""
        other = Machine(self.me, job, self.rank)
        assert [other.handle(event) for event, _ in self.log] == [actions for _, actions in self.log]


class Simulated:
    """One worker: its machine, its main thread and its stage's state, or its rank's part of it."""

    def __init__(self, world: World, member: Member, number: int = 0) -> None:
        self.world = world
        self.member = member
        self.number = number
        self.machine = LoggedMachine(member, world.job, ServerRank(number, world.ranks))
        self.alive = True
        self.hung = False
        # Whether it reaches neither the store nor those who do.
        self.cut = False
        self.held: dict[int, History] = {}
        self.to_do: list[Action] = []
        self.iteration: tuple[int, int] | None = None
        self.interrupted = False
        self.rebuild: Rebuild | None = None
        self.told: set[tuple[int, str]] = set()
        self._numbers = 0
        world.everyone.append(self)

    @property
    def process(self) -> Process:
        return self.member, self.number

    def tell(self, event: Event) -> None:
        epoch = self.machine.view.epoch
        self.told.add((epoch, event.id))
        actions = self.machine.handle(event)
        assert not any(isinstance(action, Rebuild) for action in actions[:-1])
        # What is proposed says what was known when it was decided.
        self.to_do += [
            Propose(replace(action.verdict, heard=self.heard(epoch))) if isinstance(action, Propose) else action
            for action in actions
        ]

    def heard(self, epoch: int) -> int:
        """Up to which entry of an epoch's log the machine was told."""
        entries, number = self.entries(epoch), 0
        while number + 1 in entries and (epoch, entries[number + 1].id) in self.told:
            number += 1
        return number

    def entries(self, epoch: int) -> dict[int, Event]:
        """What an epoch's log has to say, by the numbers of the entries."""
        found = dict(self.world.board.failures.log(epoch).read().found)
        return {number: self._event(entry) for number, entry in found.items() if entry is not None}

    def _event(self, entry: Report | Death) -> Event:
        if isinstance(entry, Death):
            return Died(f"death/{entry.member}", entry)
        if Member.parse(entry.member) in self.machine.view.members:
            return Reported(f"report/{entry.epoch}/{entry.member}/{entry.rank}", entry)
        return JoinReady(f"join/{entry.epoch}/{entry.member}/{entry.rank}", entry)

    def new_id(self) -> str:
        self._numbers += 1
        return f"own/{self._numbers}"

    def offers(self) -> list[Event]:
        """Everything that the store has to say to this member now."""
        board, epoch = self.world.board, self.machine.view.epoch
        events: list[Event] = []
        if self.member.incarnation == 0:
            events.append(Opened("opening", self.world.opening))
        if alarm := board.failures.alarm(max(epoch, 0)):
            events.append(Noticed(f"alarm/{alarm.epoch}", alarm.epoch, alarm.cause))
        for member in filter(None, (self.machine.leader, self.member)):
            if death := board.failures.death(member):
                events.append(Died(f"death/{member}", death))
        for event in self.entries(epoch).values():
            if not isinstance(event, JoinReady) or not board.failures.death(Member.parse(event.report.member)):
                events.append(event)
        if verdict := board.verdicts.newest(epoch + 1):
            events.append(Decided(f"view/{verdict.epoch}", verdict))
        return sorted(events, key=lambda event: event.id)

    # What the main thread does by itself.

    def finish_iteration(self) -> bool:
        """End the iteration, if everybody in the view has begun it, and begin the next one."""
        if self.iteration is None:
            return False
        epoch, step = self.iteration
        if self.world.begun[self.iteration] != set(self.world.processes(self.world.verdicts[epoch].view)):
            return False
        assert step in self.held, f"{self.member} does iteration {step} without its version"
        self.held = {step: self.held[step], step + 1: (*self.held[step], (step, epoch))}
        if epoch == self.world.epoch:
            self.world.reached = max(self.world.reached, step + 1)
        if self.world.pauses.get(epoch) == step + 1 and not self.interrupted:
            self.tell(Paused(f"pause/{epoch}", epoch, step + 1))
            self.interrupted = True
        else:
            self._begin(epoch, step + 1)
        return True

    def fail(self) -> None:
        """An operation of the iteration, or of the rebuilding, raises."""
        if self.iteration is not None:
            self.interrupted = True
            self.tell(Noticed(self.new_id(), self.iteration[0], "an operation failed"))
        elif self.rebuild is not None and not self.to_do:
            self.interrupted = True
            self.tell(BuildFailed(self.new_id(), self.rebuild.verdict.epoch, "the groups cannot be built"))

    def come_to_safe_point(self) -> bool:
        """The main thread was interrupted, or is ready at the start of the run, and says what it holds."""
        if not (self.interrupted or self.machine.starts) or self.machine.state is not State.HALTING:
            return False
        self.interrupted = False
        self.iteration = self.rebuild = None
        self._halt()
        return True

    def finish_rebuild(self) -> bool:
        """The groups stand, and the version is there or copied: from a peer that has it, or the checkpoint."""
        if self.rebuild is None or self.interrupted:
            return False
        view, step = self.rebuild.verdict.view, self.rebuild.verdict.step
        if self.world.building[view.epoch] != set(self.world.processes(view)):
            return False
        if self.rebuild.verdict.restore == "checkpoint":
            self.held = {step: self.world.durable[step]}
        elif str(self.member) in self.rebuild.verdict.lacking:
            stage = self.member.server.stage
            peers = [self.world.of(each, self.number) for each in view.members if each.server.stage == stage]
            lacking = self.rebuild.verdict.lacking
            holders = [each.held[step] for each in peers if each.alive and str(each.member) not in lacking]
            if not holders:
                return False
            near = {version: self.held[version] for version in (step - 1, step + 1) if version in self.held}
            self.held = {step: holders[0], **near}
        self.rebuild = None
        self.tell(Built(self.new_id(), view.epoch))
        return True

    def overdue(self, member: Member) -> None:
        self.tell(Overdue(self.new_id(), self.machine.view.epoch, member))

    def ask_for_pause(self) -> None:
        """The leader has seen that somebody is ready to take a vacant place."""
        if self.iteration and self.machine.leads:
            ready = Counter(event.report.member for event in self.offers() if isinstance(event, JoinReady))
            for name, count in ready.items():
                if count == self.world.ranks and Member.parse(name).server in self.world.vacant():
                    self.world.pauses.setdefault(self.iteration[0], self.iteration[1] + 2)

    # What it is asked to do.

    def act(self) -> bool:
        if not self.to_do:
            return False
        action, board = self.to_do.pop(0), self.world.board
        match action:
            case RaiseAlarm(epoch=epoch, cause=cause):
                board.failures.raise_alarm(epoch, cause, str(self.member))
                self.interrupted = self.machine.state is State.HALTING
            case PublishReport(report=report):
                board.failures.publish_report(report)
                if self.machine.state is State.JOINING:
                    board.joining.request(JoinRequest(report.member, report.epoch, 0, "synced", self.number))
            case Propose(verdict=verdict):
                self.world.agents.append(self.world.ring(board.verdicts.propose(verdict)))
                self.world.look()
            case Accuse(member=member):
                board.declare_dead([Death(str(member), "did not answer", "answer", 0.0)], str(self.member))
            case Rebuild():
                assert self.iteration is None
                heard = replace(action.verdict, unheard=self.world.rung.get(action.verdict.epoch))
                for death in board.failures.unheard(heard):
                    self.tell(Died(f"death/{death.member}", death))
                self.rebuild = action
                self.world.building.setdefault(action.verdict.epoch, set()).add(self.process)
            case Resume(epoch=epoch, step=step):
                if not self.interrupted:
                    self._resume(epoch, step)
            case Prepare(view=view):
                peers = [
                    self.world.of(member, self.number)
                    for member in view.members
                    if member.server in view.peers(self.member.server.stage)
                ]
                self.held = {}
                for peer in peers:
                    if peer.alive and peer.machine.view.epoch == view.epoch and peer.held:
                        self.held = {max(peer.held): peer.held[max(peer.held)]}
                self._halt()
            case Exit():
                self.die()
                if self.member in self.world.newest().view.members:
                    self.world.agents.append(self.world.declare_dead([self.member], "agent"))
            case Stop():
                self.die()
        return True

    def die(self) -> None:
        self.alive = False
        self.to_do = []

    def _begin(self, epoch: int, step: int) -> None:
        self.iteration = epoch, step
        self.world.begun.setdefault((epoch, step), set()).add(self.process)

    def _resume(self, epoch: int, step: int) -> None:
        verdict = self.world.verdicts[epoch]
        assert self.machine.view == verdict.view, f"{self.member} resumes in another view than that of epoch {epoch}"
        assert step == verdict.step
        assert step in self.held, f"{self.member} resumes at {step} and holds {sorted(self.held)}"
        history = self.held[step]
        assert [iteration for iteration, _ in history] == list(range(step)), f"{self.member} stepped twice or skipped"
        assert all(before <= after for (_, before), (_, after) in pairwise(history))
        others = self.world.resumed.setdefault(epoch, history)
        assert history == others, f"{self.member} goes on from another state than the others"
        assert step >= self.world.reached - 1, f"more than one iteration is lost: {step} after {self.world.reached}"
        self.held = {version: held for version, held in self.held.items() if version <= step}
        self._begin(epoch, step)

    def _halt(self) -> None:
        newest, oldest = max(self.held, default=NOTHING), min(self.held, default=NOTHING)
        checkpoint = max(self.world.durable, default=None)
        report = Report(str(self.member), self.machine.view.epoch, newest, oldest, checkpoint)
        self.tell(Halted(self.new_id(), report))
