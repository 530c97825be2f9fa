"""One server's training of a GPT, from its model to its checkpoints."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from recycle.control.membership.view import SOLE, ServerRank, View
from recycle.holding import placed
from recycle.job import Server
from recycle.megatron.gpt.checkpointing import Checkpointing
from recycle.megatron.gpt.forward import forward_step
from recycle.megatron.gpt.model import build_stage, transformer_config
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.gpt.text import ByteText
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.stage_training import StageTraining
from recycle.megatron.shared.world import Place, groups_of, join_server
from recycle.plan.batch import Batch
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.record.recording import EvaluationLine, InstantLine, IterationLine
from recycle.record.reporting import Reporter
from recycle.runtime.device import DeviceClock
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.net.network import Network
from recycle.runtime.recover.view_reports import now
from recycle.runtime.step.checkpoint import give_state
from recycle.runtime.step.listener import Listener
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.shard_steps import ShardRule
from recycle.runtime.step.trainee import Trainee
from recycle.runtime.step.update import TorchUpdate

State = Mapping[str, torch.Tensor]

CPU = torch.device("cpu")


class GptServer:
    """Trains the stages that one server holds of a GPT, iteration by iteration; Connectable, and a Loop.

    Args:
        run: what to do.
        server: which server this is.
        text: what is trained on.
        reporter: gets what happens.
        keep: whether steps can be undone.
        rank: of the server.
        device: on which it computes.

    Attributes:
        training: of its stages.
        checkpoints: of them.
        network: of the view in which it works now.
        recorder: what it executed.
    """

    def __init__(
        self,
        run: Run,
        server: Server,
        text: ByteText,
        reporter: Reporter,
        keep: bool,
        rank: ServerRank = SOLE,
        device: torch.device = CPU,
    ) -> None:
        self.recorder = Recorder(server, clock=DeviceClock())
        self.network: Network | None = None
        self._run = run
        self._server = server
        self._rank = rank
        self._reporter = reporter
        self._collectives = RankCollectives(rank)
        groups = join_server(server, run.plan.job.depth, self._collectives)
        chunks = placed(run.plan.job, server).chunks

        def stage(chunk: int) -> MegatronStage:
            return make_stage(run, chunk, text, groups, device)

        def update(stages: Sequence[MegatronStage], chunks: Sequence[int]) -> TorchUpdate:
            return make_update(run, stages, chunks, keep)

        stages = [stage(each) for each in chunks]
        self.training = StageTraining(stages, chunks, update(stages, chunks), self.recorder)
        self._held = HeldChunks(self.training, stage, update)
        self.checkpoints = Checkpointing(run, text.fingerprint, server, rank, self.training, reporter)

    @property
    def trainee(self) -> Trainee:
        """What recovery gets of it."""
        training, shards, even = self.training, self.training.shards, self._run.plan.job.even
        return Trainee(
            training,
            connection=self,
            durable=self.checkpoints,
            # Who serves a joiner has only some shards, or some of its chunks, so that it gets its own in the pause in
            # which it is let in.
            followed=training if shards is None and even else None,
            shards=shards,
            chunks=None if even else self._held,
            rank=self._rank,
            transport=self._run.transport,
        )

    @property
    def view(self) -> View:
        """In which it works now."""
        return self._connected.view

    @property
    def gradients(self) -> Sequence[torch.Tensor]:
        """Where gradients are added up now."""
        return self.training.update.sums.collected.buffers

    @property
    def last(self) -> int:
        """See Loop."""
        return self._run.iterations

    @property
    def done(self) -> bool:
        """See Connectable."""
        return self.training.newest >= self.last

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """See Connectable."""
        self.network = network
        self._collectives.connect(network)
        self._held.complete()
        self.training.connect(plan, network, hooks, notices)
        if self.training.newest == 0:
            self.training.tie_embeddings()

    @property
    def owes_checkpoint(self) -> bool:
        """See Loop."""
        return self.checkpoints.is_owed

    @property
    def saves_again(self) -> bool:
        """See Loop."""
        return self.checkpoints.is_tried_again

    def between(self, step: int, *, save: bool, settle: bool) -> None:
        """See Loop."""
        self._make_up(step)
        run = self._run
        from_memory = self.checkpoints.from_memory
        due = step == run.iterations or (from_memory is None and run.is_due(step))
        looks = run.evaluate_every > 0 and (step % run.evaluate_every == 0 or step == run.iterations)
        if due or save or looks or settle:
            self.training.worker.settle()
        if step and (due or save):
            self.checkpoints.save(step, self._connected)
        elif from_memory is not None:
            from_memory.look(step, run.newest_due(step), leads=self._leads)
        speculation = self.training.update.speculation
        if step == run.iterations and speculation is not None and self._leads:
            self._reporter.tell(InstantLine("norm", now(), str(self._server), str(speculation)))
        if looks:
            losses = list(self.training.worker.evaluate())
            self._reporter.tell(EvaluationLine(str(self._server), step, losses, self._epoch))

    def iterate(self, step: int) -> None:
        """See Loop."""
        start = time.monotonic()
        self._make_up(step)
        self.recorder.clear()
        try:
            self.training.worker.run(step)
            self._held.let_go()
        finally:
            if self.training.newest > step:
                # Also where this server was interrupted before it had let go of all transfers: the others may go on
                # from there, and nobody would make this iteration again.
                self._tell_of(step, time.monotonic() - start)

    def _make_up(self, step: int) -> None:
        """Come to a version again: all took back the last step before this view, if no gradient was fit for it."""
        while self.training.newest < step:
            self.recorder.clear()
            self.training.worker.run(self.training.newest)

    def _tell_of(self, step: int, seconds: float) -> None:
        report = self.training.worker.report
        line = IterationLine(
            str(self._server), step, seconds, list(report.losses), report.peak_memory, self._epoch, now()
        )
        self._reporter.tell(line, self.recorder.take_spans())

    @property
    def _connected(self) -> Network:
        assert self.network is not None, "it is in no view"
        return self.network

    @property
    def _leads(self) -> bool:
        return self._server == self.view.servers[0] and self._rank.is_first

    @property
    def _epoch(self) -> int:
        return self.view.epoch


def make_stage(run: Run, number: int, text: ByteText, groups: Any, device: torch.device = CPU) -> MegatronStage:
    """A stage of a run's model, with the parameters that all its servers begin with.

    Args:
        run: what is trained.
        number: which stage.
        text: what is trained on.
        groups: those of this rank's server.
        device: on which it computes.
    """
    job, options = run.plan.job, run.model
    place = Place(number, len(job.stages))
    config = transformer_config(options, place.depth)
    model = build_stage(options, config, number, place.depth, groups_of(groups, place)).to(device)
    parts = options.tensor_parallel if options.sequence_parallel else 1
    shape = (options.sequence // parts, options.micro_batch_size, options.hidden)
    return MegatronStage(model, place, shape, Batch(job).length, forward_step, text, options.seed)


def make_update(run: Run, stages: Sequence[MegatronStage], numbers: Sequence[int], keep: bool) -> TorchUpdate:
    """How the stages of a server reduce and step.

    Args:
        run: what is trained.
        stages: of the server.
        numbers: which stages they are.
        keep: whether steps can be undone.
    """
    job, options = run.plan.job, run.model
    batch = Batch(job)
    method = Method(
        options.clip,
        run.plan.mode.optimizer == "staggered",
        batch.rows * batch.length if options.exact else 0,
        keep,
        options.schedule.prepare,
        _shard_rule(stages, job.pipelines) if options.distributed_optimizer else None,
    )
    main = MainParameters(*(stage.parameters() for stage in stages))
    return TorchUpdate(main, options.make_optimizer, batch.rows, numbers, len(job.stages), method)


def _shard_rule(stages: Sequence[MegatronStage], count: int) -> ShardRule:
    """How the optimizer of a server's stages is cut, so that a shard's part of each layer can be told apart."""
    names = (
        f"{place} {_layer_of(name)}"
        for place, stage in enumerate(stages)
        for name, parameter in stage.model.named_parameters()
        if parameter.requires_grad
    )
    return ShardRule(tuple(len(list(members)) for _, members in groupby(names)), count)


def _layer_of(name: str) -> str:
    """The layer that a parameter belongs to, or the module where it belongs to none."""
    found = re.search(r"^(.*\blayers\.\d+)\.", name)
    return found[1] if found else name.split(".")[0]


class HeldChunks:
    """The chunks of a server's training, in it and aside.

    What the server is to hold no longer is set aside until the first iteration without it is made: others may still
    need a copy, if one of them dies before that.

    Args:
        training: of the chunks.
        make_stage: makes one of them, with any parameters.
        make_update: makes what reduces and steps some of them.
    """

    def __init__(
        self,
        training: StageTraining,
        make_stage: Callable[[int], MegatronStage],
        make_update: Callable[[Sequence[MegatronStage], Sequence[int]], TorchUpdate],
    ) -> None:
        self._training = training
        self._make_stage = make_stage
        self._make_update = make_update
        self._aside: dict[int, State] = {}
        self._version = 0
        self._missing: frozenset[int] = frozenset()
        self._copies: dict[int, StageTraining] = {}
        self._arrived: set[int] = set()

    @property
    def held(self) -> tuple[int, ...]:
        """See Movable."""
        return tuple(sorted({*self._training.chunks, *self._spares} - self._missing))

    def part(self, chunk: int) -> State:
        """See Movable."""
        spares = self._spares
        return spares[chunk] if chunk in spares else self._training.part(chunk)

    @property
    def newest(self) -> int:
        """See Movable."""
        return self._training.newest

    def listen(self, listeners: Sequence[tuple[int, Listener]]) -> None:
        """See Movable."""
        self._training.listen(_ChunkFeed(self._training, listeners) if listeners else None)

    def start_copy(self, chunk: int) -> StageTraining:
        """See Movable."""
        stage = self._make_stage(chunk)
        copy = StageTraining([stage], [chunk], self._make_update([stage], [chunk]), self._training.recorder)
        self._copies[chunk] = copy
        self._arrived.discard(chunk)
        return copy

    def take_copy(self, chunk: int) -> None:
        """See Movable."""
        self._arrived.add(chunk)

    def hold(self, chunks: Sequence[int]) -> None:
        """See Movable."""
        training = self._training
        # Nobody follows any longer.
        self._copies = {chunk: self._copies[chunk] for chunk in self._arrived}
        if tuple(chunks) == training.chunks:
            return
        parts = {chunk: self.part(chunk) for chunk in self.held}
        known = {chunk: stage for chunk, stage in training.stages.items() if chunk in chunks}
        known |= {chunk: self._copies[chunk].stages[chunk] for chunk in self._arrived - set(known)}
        stages = {chunk: known.get(chunk) or self._make_stage(chunk) for chunk in chunks}
        version = training.newest
        update = self._make_update(list(stages.values()), list(stages))
        training.replace(stages, update)
        for chunk in set(chunks) & set(parts):
            give_state(parts[chunk], training.named(chunk), update.optimizer)
        update.adopt(version)
        self._aside = {chunk: part for chunk, part in parts.items() if chunk not in chunks}
        self._version = version
        self._missing = frozenset(chunks) - frozenset(parts)

    def complete(self) -> None:
        """Those that were missing have a version now."""
        self._missing = frozenset()

    def let_go(self) -> None:
        """An iteration was made: nobody needs what was set aside any more."""
        self._aside = {}
        if self._arrived:
            self._copies = {chunk: copy for chunk, copy in self._copies.items() if chunk not in self._arrived}
            self._arrived.clear()

    @property
    def _spares(self) -> dict[int, State]:
        """What was set aside and what was copied, as long as it is of the newest version."""
        newest = self._training.newest
        aside = self._aside if newest == self._version else {}
        copies = {each: self._copies[each] for each in self._arrived - set(self._training.chunks)}
        return aside | {each: copy.part(each) for each, copy in copies.items() if copy.newest == newest}


class _ChunkFeed:
    """Tells each of some listeners of the steps of one chunk; a Listener."""

    def __init__(self, training: StageTraining, listeners: Sequence[tuple[int, Listener]]) -> None:
        self._training = training
        self._listeners = listeners

    def stepping(self, parts: Sequence[torch.Tensor]) -> None:
        """See Listener."""
        *_, made = parts
        training = self._training
        for chunk, listener in self._listeners:
            listener.stepping((*training.update.parts_of(training.chunks.index(chunk)), made))

    def undone(self) -> None:
        """See Listener."""
        for _, listener in self._listeners:
            listener.undone()
