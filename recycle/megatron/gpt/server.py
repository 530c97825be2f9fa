"""One server's training of a GPT, from its model to its checkpoints."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from recycle.errors import RunFailed, UserError
from recycle.job import Server
from recycle.megatron.gpt.forward import forward_step
from recycle.megatron.gpt.model import build_stage, transformer_config
from recycle.megatron.gpt.run import Run
from recycle.megatron.gpt.text import VALIDATION, TokenText
from recycle.megatron.stage import MegatronStage
from recycle.megatron.ties import tie_of
from recycle.megatron.world import Place, join_server
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.record.recording import EvaluationLine, InstantLine, IterationLine
from recycle.record.reporting import Reporter
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.network import Network
from recycle.runtime.recover.view_reports import now
from recycle.runtime.step.checkpoint import (
    VERSION,
    Manifest,
    checkpoints,
    complete,
    folder_of,
    give_state,
    read_manifest,
    read_stage,
    stage_state,
    write_stage,
)
from recycle.runtime.step.listener import Listener
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.tokens import TokenTotal
from recycle.runtime.step.trainee import Trainee
from recycle.runtime.step.update import Method, TorchUpdate


class GptServer:
    """Trains one stage of a GPT: Followable, Durable and Connectable, with a Loop.

    Args:
        run: what to do.
        server: which server this is.
        text: what is trained on.
        reporter: gets what happens.
        keep: whether steps can be undone.
        tensor_rank: the rank's place in the server.
        store: where the ranks of a server find each other, if it has several.

    Attributes:
        network: of the view in which it works now.
        recorder: what it executed.
    """

    def __init__(
        self,
        run: Run,
        server: Server,
        text: TokenText,
        reporter: Reporter,
        keep: bool,
        tensor_rank: int = 0,
        store: torch.distributed.Store | None = None,
    ) -> None:
        job, options = run.plan.job, run.model
        world = torch.distributed.HashStore() if store is None else store
        groups = join_server(world, server, job.depth, tensor_rank, run.tensor_parallel)
        config = transformer_config(options, job.depth, run.tensor_parallel)
        self.recorder = Recorder(server)
        self.network: Network | None = None
        self._worker: Worker | None = None
        self._run = run
        self._settings = run.settings | {"text": text.fingerprint}
        self._server = server
        self._tensor_rank = tensor_rank
        self._reporter = reporter
        self._model = build_stage(options, config, server.stage, job.depth, groups)
        self._stage = MegatronStage(
            self._model,
            config,
            Place(server.stage, job.depth),
            (options.sequence, options.micro_batch_size, options.hidden),
            job.micro_batches,
            forward_step,
            text.samples,
            lambda micro_batch: text.samples(micro_batch, VALIDATION),
            options.seed,
        )
        self._update = TorchUpdate(
            MainParameters(self._stage.parameters()),
            options.make_optimizer,
            job.pipelines,
            server.stage,
            job.depth,
            Method(
                options.clip,
                run.plan.mode.optimizer == "staggered",
                job.pipelines * job.micro_batches if options.exact else 0,
                keep,
                options.schedule.prepare,
                options.scale_rule,
            ),
        )
        if self._update.loss_scale is not None:
            config.grad_scale_func = self._update.loss_scale.apply

    @property
    def trainee(self) -> Trainee:
        """What recovery gets of it."""
        return Trainee(versions=self, connection=self, durable=self, followed=self)

    @property
    def newest(self) -> int:
        """See Versioned."""
        return self._update.versions.newest

    @property
    def oldest(self) -> int:
        """See Versioned."""
        return self._update.versions.oldest

    @property
    def last(self) -> int:
        """See Loop."""
        return self._run.iterations

    @property
    def done(self) -> bool:
        """See Connectable."""
        return self.newest >= self.last

    def drop(self) -> None:
        """See Versioned."""
        if self._worker is not None:
            self._worker.close()
        self._stage.drop()
        self._update.drop()

    def undo(self) -> None:
        """See Versioned."""
        self._update.undo()

    def enter(self, network: Network, step: int) -> int:
        """See Versioned."""
        return self._update.enter(network, step)

    def state(self) -> Mapping[str, torch.Tensor]:
        """See Versioned."""
        return stage_state(self._named(), self._update.optimizer)

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Versioned."""
        give_state(state, self._named(), self._update.optimizer)
        self._update.adopt(step)

    def listen(self, listener: Listener | None) -> None:
        """See Followable."""
        self._update.listener = listener

    def follow(self, parts: Sequence[torch.Tensor]) -> None:
        """See Followable."""
        self._update.follow(parts)

    def load(self, step: int) -> None:
        """See Durable.

        Raises:
            RunError: it cannot be read, or is of another model.
        """
        folder = folder_of(self._run.checkpoints, step)
        read_manifest(folder, self._settings)
        read_stage(folder, self._shard, self._named(), self._update.optimizer)
        self._update.adopt(step)

    def durable(self) -> int | None:
        """See Durable."""
        found = checkpoints(self._run.checkpoints)
        return read_manifest(found[-1], self._settings).step if found else None

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """See Connectable."""
        job, options = plan.job, self._run.model
        self.network = network
        after_reduction: Callable[[], None] = _nothing
        tie = tie_of(self._model, network, job.depth)
        if tie is not None:
            after_reduction = tie.reduce
            if self.newest == 0:
                tie.copy_from_first()
                self._update.main.copy_here()
        tokens = TokenTotal(network, job.depth, self._stage.take_tokens) if options.per_token_loss else None
        self._update.connect(network, after_reduction, tokens)
        waiting = self._run.waiting if plan.failed == self._run.plan.failed else None
        self._worker = Worker(plan, self._stage, self._update, network, self.recorder, hooks, notices, waiting)

    def between(self, step: int, *, save: bool, settle: bool) -> None:
        """See Loop."""
        run = self._run
        due = step == run.iterations or (run.checkpoint_every > 0 and step % run.checkpoint_every == 0)
        looks = run.evaluate_every > 0 and (step % run.evaluate_every == 0 or step == run.iterations)
        assert self._worker is not None
        if due or save or looks or settle:
            self._worker.settle(step)
        if step and (due or save) and not folder_of(run.checkpoints, step).exists():
            self._save(step)
        if step == run.iterations and self._update.speculation is not None and self._leads:
            self._reporter.tell(InstantLine("norm", now(), str(self._server), self._update.summary))
        if looks:
            losses = list(self._worker.evaluate())
            self._reporter.tell(EvaluationLine(str(self._server), step, losses, self._epoch))

    def iterate(self, step: int) -> None:
        """See Loop."""
        start = time.monotonic()
        self.recorder.clear()
        assert self._worker is not None
        while self.newest < step:
            # All servers took back the last step before this view, because no gradient was fit for it.
            self._worker.run(self.newest)
        report = self._worker.run(step)
        seconds = time.monotonic() - start
        line = IterationLine(str(self._server), step, seconds, list(report.losses), report.peak_memory, self._epoch)
        self._reporter.tell(line, self.recorder.spans(0))

    @property
    def gradients(self) -> Sequence[torch.Tensor]:
        """Where gradients are added up; faults are injected there."""
        return self._update.gradients.buffers

    @property
    def _leads(self) -> bool:
        assert self.network is not None
        return self._server == self.network.view.servers[0] and self._tensor_rank == 0

    @property
    def _epoch(self) -> int:
        assert self.network is not None
        return self.network.view.epoch

    @property
    def _shard(self) -> str:
        """The name of this rank's part of the model in a checkpoint."""
        return f"stage-{self._server.stage}/tensor-{self._tensor_rank}"

    def _named(self) -> Mapping[str, torch.Tensor]:
        return self._update.named(self._model)

    def _save(self, step: int) -> None:
        assert self.network is not None
        view = self.network.view
        failures = torch.zeros(1)
        if self._server == view.peers(self._server.stage)[0]:
            try:
                write_stage(self._run.checkpoints, step, self._shard, dict(self.state()))
            except RunFailed as error:
                failures += 1
                if step == self._run.iterations:
                    raise  # there is no later one
                self._warn(str(error))
        if not self._sum(failures) and self._leads:
            try:
                complete(self._run.checkpoints, Manifest(VERSION, step, self._settings))
            except UserError as error:
                self._warn(str(error))
        self._sum(torch.zeros(1))

    def _warn(self, text: str) -> None:
        self._reporter.tell(InstantLine("warning", now(), str(self._server), text))

    def _sum(self, tensor: torch.Tensor) -> float:
        """Over all ranks: those of one place in their servers meet, and then those of each server."""
        assert self.network is not None
        self.network.all.sum(tensor)
        if self._run.tensor_parallel > 1:
            torch.distributed.all_reduce(tensor)
            self.network.all.sum(tensor)
        return tensor.item()


def _nothing() -> None:
    """What is done to gradients that nothing is done to."""
