"""Training a GPT on text by a plan: a process per live server of this machine, with events and checkpoints."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from megatron.core.utils import get_attr_wrapped_model

from recycle.job import Server
from recycle.megatron.cpu import run_on_cpu
from recycle.megatron.gpt import forward_step, load_text
from recycle.megatron.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.stage import MegatronStage
from recycle.megatron.ties import Tie
from recycle.megatron.world import Place, join_server
from recycle.plan.document import save_plan
from recycle.plan.plan import Plan
from recycle.plan.recording import EvaluationLine, IterationLine
from recycle.runtime.checkpoint import (
    VERSION,
    Manifest,
    checkpoints,
    complete,
    read_manifest,
    read_stage,
    stage_state,
    write_stage,
)
from recycle.runtime.errors import RunError
from recycle.runtime.events import Event, EventFile
from recycle.runtime.launcher import Process, launch
from recycle.runtime.network import Network
from recycle.runtime.recording import Recorder
from recycle.runtime.stage import MicroBatch
from recycle.runtime.text import VALIDATION, TokenText
from recycle.runtime.tokens import TokenTotal
from recycle.runtime.torchrun import join, under_torchrun
from recycle.runtime.update import TorchUpdate
from recycle.runtime.view import View
from recycle.runtime.worker import Worker

Watch = Callable[[Event], None]


class Run(msgspec.Struct, frozen=True):
    """A training run.

    Attributes:
        plan: a lowered plan; the servers that are failed in it take no part.
        model: what is trained.
        iterations: the step at which training ends.
        folder: where events and checkpoints go.
        resume: go on from the newest checkpoint in the folder.
        checkpoint_every: iterations between checkpoints; 0 for none but at the end.
        evaluate_every: iterations between evaluations on held-out text; 0 for none.
        text: a file to train on; Python's standard library if None.
        tensor_parallel: ranks per server, over which every layer is split.
    """

    plan: Plan
    model: ModelOptions
    iterations: int
    folder: Path
    resume: bool = False
    checkpoint_every: int = 0
    evaluate_every: int = 0
    text: Path | None = None
    tensor_parallel: int = 1

    @property
    def events(self) -> Path:
        """The folder of the servers' events."""
        return self.folder / "events"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def settings(self) -> dict[str, Any]:
        """What must be the same for a run to go on from a checkpoint; who is alive may differ."""
        job = self.plan.job
        shape = {
            "pipelines": job.pipelines,
            "stages": job.depth,
            "micro_batches": job.micro_batches,
            "tensor_parallel": self.tensor_parallel,
        }
        model: dict[str, Any] = msgspec.to_builtins(self.model)
        return shape | model


def train(run: Run, watch: Watch) -> None:
    """Train with a process per live server: forked here, or started by torchrun, of which this is one.

    Args:
        run: what to do.
        watch: called with every event of every server; under torchrun, on the first process.

    Raises:
        UserError: something that was asked for cannot be done.
        ProcessFailed: a process failed.
    """
    view = View.of(run.plan)
    transformer_config(run.model, run.plan.job.depth, run.tensor_parallel)
    if run.tensor_parallel > 1 and run.model.clip is not None:
        raise RunError(
            f"clip is {run.model.clip:g}: the norm of a gradient is not taken over tensor-parallel ranks; do without "
            "clipping, or with --tensor-parallel 1"
        )
    text = load_text(run.text, run.model)
    newest = _newest(run, text.fingerprint) if run.resume else None
    _refuse_to_overwrite(run)
    run.folder.mkdir(parents=True, exist_ok=True)
    save_plan(run.plan, run.folder / "plan.json")
    start = join if under_torchrun() else launch
    start(
        len(view.servers) * run.tensor_parallel,
        lambda process: _serve(run, view, text, newest, process),
        lambda rank, content: watch(msgspec.json.decode(content, type=Event)),
    )


class Trainer:
    """One server's training: built from what all servers know, and run step by step.

    Args:
        run: what to do.
        view: the live servers.
        server: which one this is.
        tensor_rank: the rank's place in the server.
        text: what is trained on.
        store: where the ranks find each other.
    """

    def __init__(
        self,
        run: Run,
        view: View,
        server: Server,
        tensor_rank: int,
        text: TokenText,
        store: torch.distributed.Store,
    ) -> None:
        job, options = run.plan.job, run.model
        self.server = server
        self.tensor_rank = tensor_rank
        groups = join_server(store, view.epoch, server, job.depth, tensor_rank, run.tensor_parallel)
        config = transformer_config(options, job.depth, run.tensor_parallel)
        self.model = build_stage(options, config, server.stage, job.depth, groups)
        self.network = Network(store, view, server, tensor_rank)
        self.stage = MegatronStage(
            self.model,
            config,
            Place(server.stage, job.depth),
            (options.sequence, options.micro_batch_size, options.hidden),
            job.micro_batches,
            forward_step,
            text.samples,
            lambda micro_batch: text.samples(micro_batch, VALIDATION),
            options.seed,
        )
        after_reduction: Callable[[], None] = _nothing
        if options.tied and job.depth > 1 and server.stage in (0, job.depth - 1):
            weight = get_attr_wrapped_model(self.model, "shared_embedding_or_output_weight")
            tie = Tie(weight(), self.network, job.depth)
            tie.copy_from_first()
            after_reduction = tie.reduce
        self.update = TorchUpdate(
            self.stage.parameters(),
            lambda parameters: torch.optim.AdamW(
                parameters, lr=options.learning_rate, weight_decay=options.weight_decay
            ),
            self.network,
            job.pipelines,
            options.clip,
            run.plan.mode.optimizer == "staggered",
            after_reduction,
            TokenTotal(self.network, job.depth, self.stage.take_tokens) if options.per_token_loss else None,
        )
        self.recorder = Recorder(server)
        self.worker = Worker(run.plan, server, self.stage, self.update, self.network, self.recorder)

    @property
    def shard(self) -> str:
        """The name of this rank's part of the model in a checkpoint."""
        return f"stage-{self.server.stage}/tensor-{self.tensor_rank}"

    def wait_for_all(self) -> None:
        """Wait for every rank: those of one place in their servers meet, and then those of each server."""
        torch.distributed.barrier()
        self.network.barrier()
        torch.distributed.barrier()

    def iterate(self, step: int) -> IterationLine:
        """Make one iteration.

        Raises:
            RunError: a loss is no finite number.
        """
        start = time.monotonic()
        self.recorder.clear()
        report = self.worker.run(step)
        _require_finite(report.losses, step)
        return IterationLine(
            str(self.server),
            step,
            time.monotonic() - start,
            list(report.losses.values()),
            report.peak_memory,
        )

    def evaluate(self, step: int) -> EvaluationLine:
        """Measure the loss on held-out text."""
        return EvaluationLine(str(self.server), step, list(self.worker.evaluate().values()))

    def save(self, root: Path, step: int) -> None:
        """Write the stage's state into the checkpoint of a step.

        Raises:
            RunError: it cannot be written.
        """
        state = stage_state(self.update.main.named(self.model), self.update.optimizer)
        write_stage(root, step, self.shard, state)

    def load(self, checkpoint: Path) -> None:
        """Go on from the stage's state in a checkpoint.

        Raises:
            RunError: it cannot be read, or is of a stage of another shape.
        """
        read_stage(checkpoint, self.shard, self.update.main.named(self.model), self.update.optimizer)
        self.update.main.copy_back()


def _serve(run: Run, view: View, text: TokenText, newest: Path | None, process: Process) -> None:
    run_on_cpu()
    place, tensor_rank = divmod(process.rank, run.tensor_parallel)
    server = view.servers[place]
    trainer = Trainer(run, view, server, tensor_rank, text, process.store())
    settings = run.settings | {"text": text.fingerprint}
    first = 0
    if newest is not None:
        trainer.load(newest)
        first = read_manifest(newest, settings).step
    failed = run.plan.failed if process.rank == 0 else ()
    speaks = tensor_rank == 0
    file = EventFile(run.events, server, f"{run.plan.job.name}, trained", failed) if speaks else None
    encode = msgspec.json.encode

    def tell(event: Event) -> None:
        if file is None:
            return
        file.write(event, trainer.recorder.spans(0) if isinstance(event, IterationLine) else ())
        process.report(encode(event))

    for step in range(first, run.iterations):
        if run.evaluate_every and step % run.evaluate_every == 0:
            tell(trainer.evaluate(step))
        tell(trainer.iterate(step))
        done = step + 1
        if done == run.iterations or (run.checkpoint_every and done % run.checkpoint_every == 0):
            _save(run, trainer, view, Manifest(VERSION, done, settings))
    if run.evaluate_every:
        tell(trainer.evaluate(run.iterations))
    trainer.network.barrier()


def _save(run: Run, trainer: Trainer, view: View, manifest: Manifest) -> None:
    server = trainer.server
    if server == view.peers(server.stage)[0]:
        trainer.save(run.checkpoints, manifest.step)
    trainer.wait_for_all()
    if server == view.servers[0] and trainer.tensor_rank == 0:
        complete(run.checkpoints, manifest)
    trainer.wait_for_all()


def _newest(run: Run, fingerprint: str) -> Path | None:
    found = checkpoints(run.checkpoints)
    if not found:
        raise RunError(f"resume: there is no checkpoint in {run.checkpoints}; start without --resume")
    manifest = read_manifest(found[-1], run.settings | {"text": fingerprint})
    if manifest.step >= run.iterations:
        raise RunError(
            f"iterations is {run.iterations}, and {found[-1]} has {manifest.step} of them already; ask for more"
        )
    return found[-1]


def _refuse_to_overwrite(run: Run) -> None:
    if not run.resume and checkpoints(run.checkpoints):
        raise RunError(f"{run.folder}: there is a run in it; go on with --resume, or give another folder with --output")


def _require_finite(losses: Mapping[MicroBatch, float], step: int) -> None:
    for micro_batch, loss in losses.items():
        if not math.isfinite(loss):
            raise RunError(
                f"iteration {step}: the loss of micro-batch {micro_batch.home}.{micro_batch.number} is {loss}; "
                "resume from the last checkpoint with a smaller learning_rate, or set clip"
            )


def _nothing() -> None:
    """What is done to gradients that nothing is done to."""
