"""A plan in the place of Megatron's schedule, in training that goes on when servers die.

What a version is, and how it is kept, is left to two kinds: where Megatron steps its optimizer, and where stages do.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from megatron.core.utils import get_model_config

from recycle.control.board import Board
from recycle.control.durations import Durations
from recycle.control.errors import StoreLost
from recycle.control.messages import Verdict
from recycle.control.view import Member, View
from recycle.job import Server
from recycle.megatron.flag.adapter import (
    HELD_OUT,
    AdaptedStage,
    only,
    require_micro_batches,
    require_supported,
    this_server,
    timed,
)
from recycle.megatron.flag.collectives import Collectives
from recycle.megatron.flag.loss_table import LossTable
from recycle.megatron.flag.other_data import OtherData
from recycle.megatron.flag.protection import BEAT, SILENCE, Protection
from recycle.megatron.flag.roles import Roles
from recycle.megatron.flag.torch_calls import hand_over
from recycle.megatron.world import Place
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.record.reporting import ConsoleReporter
from recycle.runtime.errors import RunError, ViewBroken
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.execute.stage import MicroBatch, StageUpdate
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.net.network import Network
from recycle.runtime.net.process_groups import ReplaceableGroup
from recycle.runtime.recover.plans import FIRST, Plans
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.step.trainee import Trainee


class Training(NamedTuple):
    """What is trained.

    Attributes:
        plan: with all servers.
        make: makes a plan without some servers.
        iteration: where training begins.
        steps: gives the number of the iteration that begins, by which data and dropout are chosen.
        seed: of dropout.
        minutes: that a server may be busy before the others take it for dead.
    """

    plan: Plan
    make: Callable[[Sequence[Server]], Plan]
    iteration: Callable[[], int]
    steps: Callable[[], int]
    seed: int
    minutes: float


class SurvivingSchedule(ABC):
    """Runs a plan wherever Megatron would run its schedule, and goes on with those who are left.

    It is Versioned and Connectable.

    Args:
        training: what is trained.
        protection: what a server needs to outlive others.
        groups: all process groups of this rank.

    Attributes:
        recorder: what was executed.
    """

    def __init__(self, training: Training, protection: Protection, groups: Sequence[ReplaceableGroup]) -> None:
        self.server = this_server()
        rank = torch.distributed.get_rank()
        assert protection.servers[rank] == self.server, f"rank {rank} is {self.server}, not {protection.servers[rank]}"
        self.recorder = Recorder(self.server)
        self._job = training.plan.job
        self._training = training
        self._protection = protection
        self._groups = groups
        self._roles = Roles(self.server, protection.servers)
        self._collectives = Collectives(self.server, self._job, self.settle, self._recover, self._roles.go_on)
        self._losses = LossTable(self.server, self._job)
        self._feeds: dict[int, Feed] = {}
        self._trained: Feed | None = None
        self._evaluated: Feed | None = None
        self._leaving = False
        self._survivor: Survivor | None = None
        self._stage: AdaptedStage | None = None
        self._chunk: Any = None
        self._worker: Worker | None = None
        self._network: Network | None = None

    # What Megatron calls.

    def __call__(
        self,
        *,
        forward_step_func: Any,
        data_iterator: Any,
        model: Any,
        num_microbatches: int,
        seq_length: int,
        micro_batch_size: int,
        forward_only: bool = False,
        collect_non_loss_data: bool = False,
        adjust_tensor_shapes_fn: Any = None,
        **_: Any,
    ) -> list[Any]:
        """Run the plan once, with the arguments of Megatron's schedules.

        Returns:
            What the loss function reported of this pipeline's micro-batches; on the first live server of the last
            stage also of those of pipelines whose last server is dead.

        Raises:
            RunError: the plan does not fit the call, or a setting is not supported.
        """
        require_micro_batches(num_microbatches, self._job)
        if adjust_tensor_shapes_fn is not None or collect_non_loss_data:
            name = "adjust_tensor_shapes_fn" if adjust_tensor_shapes_fn else "collect_non_loss_data"
            raise RunError(f"{name} is given, which no plan knows of: do without")
        iterator = only(data_iterator)
        feed = self._feeds.get(id(iterator))
        if self._stage is None:
            self._begin(only(model), (seq_length, micro_batch_size), forward_step_func)
        stage = self._stage
        assert stage is not None
        self._collectives.totals = {}
        if forward_only:
            self.settle()
            self._evaluated = feed
            stage.start(iterator, self.server.pipeline)
            self._collectives.call("evaluation", self._evaluate)
        else:
            step = self._training.steps()
            self._trained = feed
            config = get_model_config(self._chunk)
            with timed(config, "forward-backward", log_level=1, barrier=config.barrier_with_L1_time):
                stage.start(iterator, self.server.pipeline, step)
                self._train(step)
            self._collectives.advance(self.newest)
            self._roles.go_on()
        stage.finish()
        if feed is not None and forward_only:
            feed.evaluations += 1
        if stage.output is not None:
            return []
        self._collectives.totals = self._losses.totals
        return self._losses.rows

    def feed(self, iterator: Any, other: OtherData | None) -> None:
        """Say where the data of other pipelines is that belongs to an iterator of this one's."""
        if iterator is not None:
            self._feeds[id(iterator)] = Feed(iterator, other)

    def leave(self) -> None:
        """At the end of the script: help others as long as they need it."""
        survivor = self._survivor
        self.settle()
        self._leaving = True
        while survivor is not None and survivor.end is None:
            try:
                survivor.leave()
                survivor.stop()
                return
            except ViewBroken as error:
                self._recover(error)

    @property
    def epoch(self) -> int:
        """Of the view; -1 before the first one."""
        return -1 if self._network is None else self._network.view.epoch

    @property
    def has_lost(self) -> bool:
        """Whether servers are dead."""
        return self._network is not None and len(self._network.view.servers) < len(self._protection.servers)

    # The beginning.

    def _begin(self, chunk: Any, shape: tuple[int, int], forward_step: Any) -> None:
        config = get_model_config(chunk)
        plan = self._training.plan
        require_supported(chunk, config, plan)
        self._chunk = chunk
        self._stage = AdaptedStage(
            chunk,
            config,
            Place(self.server.stage, plan.job.depth),
            (*shape, config.hidden_size),
            plan.job.micro_batches,
            forward_step,
            self._other_data,
            seed=self._training.seed,
        )
        seconds = max(60 * self._training.minutes, SILENCE)
        durations = Durations(beat=BEAT, silence=SILENCE, rebuild=SILENCE, answer=seconds, transfer=seconds)
        version = self._training.iteration()
        self._start(version)
        self._collectives.advance(version)
        endpoint = self._protection.endpoint
        member = Member(self.server, 0)
        self._survivor = Survivor(
            member,
            plan.job,
            Trainee(versions=self, connection=self),
            endpoint,
            durations,
            Plans(plan, None, self._training.make),
            ConsoleReporter(self.server, partial(is_first_to_say, endpoint), sys.stderr),
        )
        # Until now everybody has set up as it liked, and from now on nobody waits for long.
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            names = tuple(map(str, View.of(plan).members))
            Board(endpoint.connect(), endpoint.token).propose(Verdict(0, names, version, plan=FIRST))
        for group in self._groups:
            ranks = torch.distributed.get_process_group_ranks(group)
            hand_over(group, self._collectives, tuple(self._protection.servers[rank] for rank in ranks))
        self._survivor.begin()
        self._end_if_told()
        self._roles.play()

    # An iteration, and an evaluation.

    @abstractmethod
    def _start(self, version: int) -> None:
        """Training begins with a version; the stage is there."""

    @abstractmethod
    def _train(self, step: int) -> None:
        """Get to the version after an iteration, whatever fails meanwhile."""

    @abstractmethod
    def _make_update(self, network: Network) -> StageUpdate:
        """What ends an iteration in a view."""

    @abstractmethod
    def settle(self) -> None:
        """Make sure that the present version is what it will stay; all servers come here."""

    def _evaluate(self) -> list[torch.Tensor]:
        worker, stage = self._worker, self._stage
        assert worker is not None
        assert stage is not None
        stage.restart()
        worker.evaluate()
        self._share_losses(self._live)
        # Who comes through here knows that all have what they need.
        self._live.barrier()
        return []

    def _share_losses(self, network: Network) -> None:
        assert self._stage is not None
        if self._stage.output is None:
            self._losses.exchange(network, self._stage.reported)

    @property
    def _live(self) -> Network:
        assert self._network is not None
        return self._network

    def _other_data(self, micro_batch: MicroBatch) -> Any:
        held_out = micro_batch.step == HELD_OUT
        feed = self._evaluated if held_out else self._trained
        if feed is None or feed.other is None:
            raise RunError("data: the plan routes micro-batches of other pipelines here, whose data cannot be found")
        return feed.other(micro_batch._replace(step=feed.evaluations) if held_out else micro_batch)

    def _recover(self, error: ViewBroken) -> None:
        assert self._survivor is not None
        self._survivor.recover(error)
        self._end_if_told()

    def _end_if_told(self) -> None:
        assert self._survivor is not None
        if self._survivor.end is not None and not self._leaving:
            raise SystemExit(self._survivor.end)

    # What recovery asks for.

    @property
    @abstractmethod
    def newest(self) -> int:
        """See Versioned."""

    @property
    @abstractmethod
    def oldest(self) -> int:
        """See Versioned."""

    @property
    def done(self) -> bool:
        """See Connectable."""
        return self._leaving

    def drop(self) -> None:
        """See Versioned."""
        if self._worker is not None:
            self._worker.close()
        if self._stage is not None:
            self._stage.drop()

    @abstractmethod
    def undo(self) -> None:
        """See Versioned."""

    @abstractmethod
    def enter(self, network: Network, step: int) -> int:
        """See Versioned."""

    @abstractmethod
    def state(self) -> Mapping[str, torch.Tensor]:
        """See Versioned."""

    @abstractmethod
    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Versioned."""

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """See Connectable."""
        assert self._stage is not None
        update = self._make_update(network)
        self._worker = Worker(plan, self._stage, update, network, self.recorder, hooks)
        self._collectives.connect(network, {group.servers for group in self._groups})
        self._roles.connect(network.view)
        # Nobody goes on before all have the version that they need.
        network.barrier()
        self._network = network


class Feed:
    """The data that an iterator of the training code's is a part of.

    Args:
        iterator: it; kept, so that no other object is taken for it.
        other: the parts of other pipelines.

    Attributes:
        evaluations: how many batches were taken from it to look at them only.
    """

    def __init__(self, iterator: Iterator[Any], other: OtherData | None) -> None:
        self.other = other
        self.evaluations = 0
        self._iterator = iterator


def is_first_to_say(endpoint: Endpoint, text: str) -> bool:
    """Whether no other process has said a text yet; true where the store that knows is lost."""
    try:
        return endpoint.connect(SILENCE).add(f"said/{text}", 1) == 1
    except StoreLost:
        return True
