"""Executes plans on servers that survive each other's death: those that are left go on by a plan without the dead."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import torch

from recycle.control.host.agent import STOPPED
from recycle.control.membership.messages import Opening
from recycle.control.membership.view import Member, View
from recycle.job import Job
from recycle.megatron.flag.command.flags import DEAD
from recycle.megatron.flag.command.server_ranks import ONE_RANK, ServerRanks
from recycle.megatron.flag.run.ending import Ending
from recycle.megatron.flag.run.recording import Recording
from recycle.megatron.flag.start.protection import DURATIONS, Protection
from recycle.megatron.flag.state.memory_copies import KeptVersions, announce, read_directory
from recycle.megatron.flag.state.rejoin_state import RejoinState
from recycle.megatron.flag.state.saving import SAVE
from recycle.megatron.flag.state.training_code import TrainingCode
from recycle.megatron.flag.steps.gradients import SameParameters
from recycle.megatron.flag.steps.loss_table import LossTable
from recycle.megatron.flag.steps.steps import Steps
from recycle.megatron.flag.world.call_results import tell_all
from recycle.megatron.flag.world.collectives import Collectives, hand_over, several
from recycle.megatron.flag.world.progress import IterationProgress
from recycle.megatron.flag.world.roles import Roles, only_the_living
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.stage import MegatronStage
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.record.recording import InstantLine
from recycle.record.reporting import ConsoleReporter, Reporter, Reporters
from recycle.runtime.device import DeviceClock
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.launch.meet.keepers import KeeperFinder
from recycle.runtime.launch.process.said_once import is_first_to_say
from recycle.runtime.net.network import Network, TransportKind, meet
from recycle.runtime.net.process_groups import ReplaceableGroup
from recycle.runtime.net.stop_line import OwnGroup
from recycle.runtime.recover.admission import AdmissionPause
from recycle.runtime.recover.plans import Plans
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.view_reports import ADMITTED, now
from recycle.runtime.step.trainee import Trainee
from recycle.saying import say
from recycle.wording import plural, throughput_text


class ProtectedTraining(NamedTuple):
    """What is trained by servers that survive each other's death.

    Attributes:
        plan: with all servers.
        plans: where plans without some servers come from.
        iteration: gives the one with which training begins.
        minutes: that a server may be busy before the others take it for dead.
        code: what the training code knows.
        ending: when there is a checkpoint that nobody has planned.
        epoch: of the first view.
        recording: of what happens on this server; None if there is none.
        layout: how the ranks of a server divide its work.
        transport: what carries the tensors of its stages.
        moments: how many the optimizer has of each parameter, where the state is kept in memory; None where it is not.
        notes: what the first rank has told all others, by name.
        means: whether evaluations take the mean of each server's losses.
    """

    plan: Plan
    plans: Plans
    iteration: Callable[[], int]
    minutes: float
    code: TrainingCode
    ending: Ending
    epoch: int = 0
    recording: Recording | None = None
    layout: ServerRanks = ONE_RANK
    transport: TransportKind = "gloo"
    moments: int | None = None
    notes: Mapping[str, bytes] = MappingProxyType({})
    means: bool = False


class ProtectedExecution:
    """Executes plans in one view after the other; it is Connectable.

    Args:
        training: what is trained.
        protection: what this server needs to survive the death of others.
        groups: all process groups of this rank.
        make_steps: from this, the stages, and the number of iterations that are done.

    Attributes:
        server: which this is.
        job: for its shape.
        recorder: what was executed.
        same_parameters: those of them with which it sums gradients.
        collectives: what all servers do together.
        progress: how far this server is.
    """

    def __init__(
        self,
        training: ProtectedTraining,
        protection: Protection,
        groups: Sequence[ReplaceableGroup],
        make_steps: Callable[["ProtectedExecution", Sequence[MegatronStage], int], Steps],
    ) -> None:
        server, self._rank = protection.place(torch.distributed.get_rank())
        self.server = server
        self.job: Job = training.plan.job
        self.recorder = Recorder(server, clock=DeviceClock())
        self.progress = IterationProgress(0, 0)
        self._training = training
        self._protection = protection
        self._groups = groups
        self._make_steps = make_steps
        self._roles = Roles(server, protection.servers, self._rank)
        self._ranks = ranks = RankCollectives(self._rank)
        layout, number = training.layout, self._rank.number
        self.collectives = Collectives(server, self.job, ranks, self.settle, self.recover, self._roles.go_on, layout)
        same = [several(each) for each in (layout.same_layers(number), layout.same_experts(number))]
        self.same_parameters = SameParameters(*(ranks.carrier(each) if each else None for each in same))
        self._losses = LossTable(server, self.job, self.same_parameters.layers, training.means)
        self._leaving = False
        self._handed_over = False
        # Whether the training code of no server in the view has asked for an iteration yet.
        self._all_begin = False
        self._rejoin_state: RejoinState | None = None
        self._stages: Sequence[MegatronStage] = ()
        self._steps: Steps | None = None
        self._begun: Survivor | None = None
        self._network: Network | None = None

    # What the schedule asks for.

    def begin(self, stages: Sequence[MegatronStage]) -> None:
        """Execute over the chunks of this server from now on, rising; called once, by all servers."""
        training, endpoint = self._training, self._protection.endpoint
        # Versions are counted from the iteration with which training begins.
        version = training.iteration()
        self._stages = stages
        progress = self.progress
        progress.arrive(version, version)
        self._steps = steps = self._make_steps(self, stages, version)

        def arrive(version: int) -> None:
            steps.arrive(version)
            progress.arrive(version, training.iteration())

        self._rejoin_state = rejoin_state = RejoinState(
            steps.versions, steps.whole, training.code, lambda: self.arrives, arrive
        )
        seconds = max(60 * training.minutes, DURATIONS.hang)
        durations = msgspec.structs.replace(DURATIONS, answer=seconds, transfer=seconds, replacement=seconds)
        # The first rank speaks for the server.
        speakers = ConsoleReporter(self.server, partial(is_first_to_say, endpoint)), training.recording
        reporters: list[Reporter] = [each for each in speakers if each is not None and self._rank.is_first]
        reporter, kept = Reporters(*reporters), None
        if training.moments is not None:
            finder = KeeperFinder(read_directory(endpoint), endpoint, self.server, reporter)
            versions = KeptVersions(steps, rejoin_state)
            kept = finder.copies(versions, self._rank, self.job.depth, lambda: self.network.view)
        trainee = Trainee(
            rejoin_state,
            self,
            kept=kept,
            shards=steps.shards,
            rank=self._rank,
            admits=rejoin_state.admits,
            transport=training.transport,
            iteration=progress.iteration,
        )
        self._begun = Survivor(
            Member(self.server, self._protection.life),
            self.job,
            trainee,
            endpoint,
            durations,
            training.plans,
            reporter,
            () if kept is None else (kept,),
        )
        self._survivor.keep_notes(training.notes)
        for group in self._groups:
            places = [self._protection.place(each) for each in torch.distributed.get_process_group_ranks(group)]
            group.servers = tuple(dict.fromkeys(server for server, _ in places))
            group.numbers = tuple(dict.fromkeys(rank.number for _, rank in places))
        if not self._protection.life:
            # Setting up may take any time; from now on, nobody waits for long.
            torch.distributed.barrier()
            if training.moments is not None:
                text = announce(steps, training.moments, self.server, self._rank, self.job.pipelines, endpoint)
                reporter.tell(InstantLine("memory", now(), None, text))
            if torch.distributed.get_rank() == 0:
                # Where nobody holds what training goes on from, keepers do.
                opening = Opening.of(
                    View.of(training.plan, training.epoch), "checkpoint" if self._protection.resumes else "memory"
                )
                endpoint.board().verdicts.open(opening)
            self._hand_over()
        training.ending.listen(self._survivor.tell_to_leave)
        self._survivor.begin()
        self._go_on()
        if self._all_begin and not self._handed_over:
            self._hand_over()
        if not self._protection.life:
            if self._rank.is_first and self.server == self.network.view.servers[0]:
                plan, count = training.plan, plural(len(self.network.view.servers), "server")
                throughput = throughput_text(plan.throughput, plan.job.baseline_name)
                say(f"this run is protected: if a server dies, training goes on; {count}, {throughput}")
            # One after the other, so that each shard keeps a holder. Others may have let one go before this server was
            # in a view with it.
            for server in (each for each in self._protection.flags.dead if each in self.network.view.servers):
                self._pause(partial(self._survivor.go_on_without, server, DEAD))
        self.collectives.advance(steps.versions.newest)
        training.code.begin()
        self._roles.play()

    def train(self, iteration: int) -> list[Any]:
        """Make an iteration.

        Args:
            iteration: its number.

        Returns:
            What the loss function reported for the micro-batches of this server's pipeline, for the training code;
            empty but on the last stage, whose first live server also has those of pipelines whose last server is dead.
        """
        self.collectives.totals = {}
        if not self._handed_over:
            # Who comes back answered itself as long as the others were here already, and waited for it.
            self._hand_over()
        progress = self.progress
        progress.ask(iteration, self._stages[-1].micro_batches)
        self._training.code.begin_iteration(iteration)
        if self._training.moments is not None and self._rejoin_state is not None:
            self._rejoin_state.remember(progress.reached)
        self.let_in()
        self._ready.train()
        progress.answer()
        self._survivor.tell_recovery()
        self.collectives.advance(self._ready.versions.newest)
        self._roles.go_on()
        return self._reports()

    def evaluate(self) -> list[Any]:
        """Look at one batch of held-out data by the plan; gives what the loss function reported, as in training."""
        self.collectives.totals = {}
        results = self.collectives.call("evaluation", self._evaluate, across=True)
        if results and self._is_last:
            # Others may have made it before this server was there.
            self._losses.take(self.network.view.peers(self.server.stage), results)
        return self._reports()

    def _pause(self, leave: Callable[[], None] | None) -> None:
        """Enter the next view, where nothing is broken, or leave; all servers come here before the same iteration."""
        try:
            if leave is not None:
                leave()
                self._go_on()
            raise AdmissionPause(ADMITTED)
        except AdmissionPause as pause:
            self.enter_next_view(pause)

    @property
    def arrives(self) -> bool:
        """Whether this server is to come to others, who are about to begin an iteration; it is not there yet."""
        return (self._protection.life > 0 or self._protection.resumes) and self._network is None

    def settle(self) -> None:
        """Make sure that the present version is what it will stay; all servers come here."""
        if self._steps is not None:
            self._steps.settle()

    def _hand_over(self) -> None:
        self._handed_over = True
        for group in self._groups:
            if len(group.servers) > 1:
                hand_over(group, self.collectives.carrier(group.servers, several(group.numbers)))
            else:
                start = partial(self._ranks.start, OwnGroup(group.numbers, group.settings))
                hand_over(group, self.collectives.own_carrier(group.numbers), start)

    def let_in(self) -> None:
        """Before an iteration, let those in who wait for it, and those out who were told to; all servers come here.

        An iteration that is made again has no such boundary: all others are in its middle, and call other collectives
        after it than a server that begins with it.
        """
        survivor, rejoin_state, progress = self._survivor, self._rejoin_state, self.progress
        assert rejoin_state is not None
        if progress.repeats:
            return
        heard = survivor.exchange_notices()
        is_end = survivor.is_end or survivor.takes_shards
        self._training.ending.note(progress.iteration(progress.reached), heard, is_end)
        parting = survivor.is_parting and not is_end
        if not parting and (not heard.admit or heard.unprotected):
            return
        epoch = self.epoch
        self.settle()
        # Otherwise a view has begun meanwhile: the others do not pause, or have done so.
        if self.epoch == epoch:
            with rejoin_state.opened():
                self._pause(survivor.part if parting else None)

    def _evaluate(self) -> list[torch.Tensor]:
        for stage in self._stages:
            stage.drop()
        with self._survivor.during("an evaluation"):
            with self.collectives.redoable():
                self._ready.evaluate()
            self.share_losses(self.network)
            results: list[torch.Tensor] = []
            if self._training.moments is not None:
                first, *_ = self.network.view.peers(self.job.depth - 1)
                results = tell_all(self.network.all, self._losses.results if first == self.server else ())
            # When this returns, all servers have what they need.
            meet(self.network)
        return results

    @property
    def _is_last(self) -> bool:
        return self._stages[-1].output is None

    def _reports(self) -> list[Any]:
        if not self._is_last:
            return []
        self.collectives.totals = self._losses.totals
        return self._losses.rows

    # What steps ask for.

    @property
    def network(self) -> Network:
        """Of the present view."""
        assert self._network is not None
        return self._network

    @property
    def losses(self) -> LossTable | None:
        """What was reported here, which peers exchange; None on a server that is not of the last stage."""
        return self._losses if self._is_last else None

    def share_losses(self, network: Network) -> None:
        """Put what was reported here together with what was reported elsewhere; all servers come here.

        Raises:
            ViewBroken: somebody is gone.
        """
        last = self._stages[-1]
        if self._is_last:
            self._losses.exchange(network, last.take_results(), last.micro_batches)

    def enter_next_view(self, error: ViewBroken) -> None:
        """Get from a view that cannot go on to the next one, or end this process if there is none with it.

        Args:
            error: how that was noticed.
        """
        self._survivor.recover(error)
        self._go_on()
        self._ready.entered()

    def recover(self, error: ViewBroken) -> None:
        """Enter the next view, and get as far there as the training code believes that this server is."""
        self.enter_next_view(error)
        self._ready.catch_up()
        self._survivor.tell_recovery()

    # What recovery asks for.

    @property
    def done(self) -> bool:
        """See Connectable."""
        return self._leaving

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """See Connectable."""
        self._ranks.connect(network)
        self._ready.connect(plan, network, hooks, notices)
        self.collectives.connect(network, {group.servers for group in self._groups})
        self._roles.connect(network.view)
        self._training.ending.connect(network)
        # Nobody goes on before all have the version that they need.
        asked = torch.tensor([int(self.progress.is_asked)])
        network.all.maximum(asked)
        network.ranks.maximum(asked)
        self._all_begin = not asked
        self._network = network

    # What is asked around the schedule.

    @property
    def epoch(self) -> int:
        """Of the view; -1 before the first one."""
        return -1 if self._network is None else self._network.view.epoch

    def together(self, kind: str, act: Callable[[], None]) -> None:
        """See Living."""
        survivor = self._begun
        if self._network is None or survivor is None:
            act()
            return
        members = self._network.view.members

        def act_in_view() -> list[torch.Tensor]:
            view = self.network.view
            # Nobody who has begun it with those who are left may still be at it.
            survivor.outwait(each for each in members if each not in view.members)
            living = only_the_living(view, self._protection.by_rank, self._groups, self.collectives)
            with survivor.during(f"a {kind}", writes=kind == SAVE):
                self._ready.complete()
                with living, self._roles.only_own(), self.collectives.redoable():
                    act()
                # When this returns, nobody has to do it again.
                meet(self.network)
            return []

        self.collectives.call(kind, act_in_view, across=True)

    def leave(self) -> None:
        """At the end of the script: help others as long as they need it.

        Raises:
            SystemExit: the run was told to end, or its last checkpoint could not be written.
        """
        survivor = self._begun
        self.settle()
        self._leaving = True
        while survivor is not None and survivor.end is None:
            try:
                survivor.leave()
                survivor.stop()
                break
            except ViewBroken as error:
                self.recover(error)
        if self._training.ending.ends or not self._training.ending.is_saved:
            raise SystemExit(STOPPED)

    def _go_on(self) -> None:
        """In the view that was entered, if there is one with this server."""
        survivor, recording = self._survivor, self._training.recording
        if survivor.end is not None and not self._leaving:
            raise SystemExit(survivor.end)
        if survivor.end is None and recording is not None:
            recording.enter(self.epoch, self.progress.iteration(survivor.step))

    @property
    def _survivor(self) -> Survivor:
        assert self._begun is not None, "no schedule has begun"
        return self._begun

    @property
    def _ready(self) -> Steps:
        assert self._steps is not None, "no schedule has begun"
        return self._steps
