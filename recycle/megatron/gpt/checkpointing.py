"""A server's part in the checkpoints of a run."""

import math
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import torch

from recycle.control.membership.view import ServerRank
from recycle.errors import RunFailed, UserError
from recycle.holding import live_holders
from recycle.job import Server
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.shared.stage_training import StageTraining
from recycle.record.recording import InstantLine
from recycle.record.reporting import Reporter
from recycle.runtime.checkpoint_folders import Manifest, checkpoints, find_damage, folder_of, manifest_of
from recycle.runtime.device import on_own_device
from recycle.runtime.errors import ConnectionLost, RunError
from recycle.runtime.keep.checkpoint_from_memory import CheckpointsFromMemory
from recycle.runtime.net.network import Network
from recycle.runtime.recover.standstill import DISK
from recycle.runtime.recover.view_reports import now
from recycle.runtime.step.checkpoint import (
    VERSION,
    attempt_folder,
    complete,
    give_up,
    read_manifest,
    read_stage,
    set_aside,
    write_shard,
)
from recycle.threads import start_call

_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.)")

STAGES = "stages"
"""The setting that may change from one run to the next that goes on from its checkpoint."""

AGAIN, COSTS = 30.0, 20
"""One that could not be written is tried again after so many seconds, and so many times what the attempt took."""


class Checkpointing:
    """Writes and reads one rank's part of checkpoints; it is Durable.

    Args:
        run: whose checkpoints.
        text: tells apart what is trained on.
        server: which server this is.
        rank: of the server.
        training: of its stages.
        reporter: is told where one cannot be written.

    Attributes:
        from_memory: has keepers write those that are due while training goes on; None where all servers stop and write.
        watched: gets what all do; within the block that it gives, a standstill is noticed, but in no first one.
    """

    def __init__(
        self, run: Run, text: str, server: Server, rank: ServerRank, training: StageTraining, reporter: Reporter
    ) -> None:
        self._run = run
        self._settings = run.settings | {"text": text}
        self._server = server
        self._cut = Cut(run.model.layers, len(run.plan.job.stages))
        self._rank = rank
        self._training = training
        self._reporter = reporter
        self.from_memory: CheckpointsFromMemory | None = None
        self.watched: Callable[[str], AbstractContextManager[object]] = nullcontext
        self._owed = False
        self._due_again = 0.0

    def load(self, step: int) -> None:
        """See Durable; one that is damaged is set aside, so that the next view takes the one before.

        Raises:
            RunError: it is of another model.
            ConnectionLost: it is damaged.
        """
        folder = folder_of(self._run.checkpoints, step)
        try:
            written = cut_of(folder, read_manifest(folder, self._settings))
            stages = self._training.chunks
            states = [read_recut(folder, stage, self._rank.number, self._cut, written) for stage in stages]
        except UserError as error:
            with suppress(OSError):  # where it keeps its name, it is tried again
                if folder.exists():  # no other server was faster
                    text = f"{error}: the checkpoint is set aside as {set_aside(folder)}, and the one before is taken"
                    self._reporter.tell(InstantLine("warning", now(), str(self._server), text))
            raise ConnectionLost(str(error)) from error
        self._training.take(step, folder, states)

    def durable(self) -> int | None:
        """See Durable; what cannot be read is passed over."""
        with suppress(OSError):  # of the folder that has all of them
            for folder in reversed(checkpoints(self._run.checkpoints)):
                with suppress(UserError):
                    manifest = read_manifest(folder, self._settings)
                    cut_of(folder, manifest)
                    return manifest.step
        return None

    def manifest(self, step: int) -> Manifest:
        """What the checkpoint of a step is of."""
        stages, ranks = range(self._cut.stages), range(self._rank.size)
        shards = tuple(shard(stage, rank) for stage in stages for rank in ranks)
        return Manifest(VERSION, step, self._settings | {STAGES: self._cut.stages}, shards)

    def save(self, step: int, network: Network) -> None:
        """Write the present version, if there is no such checkpoint; all ranks of the view come here.

        Args:
            step: which version it is.
            network: of the view.

        Raises:
            RunFailed: the last one of the run cannot be written.
            ViewBroken: somebody is gone.
        """
        view = network.view
        leads = self._rank.is_first and self._server == view.servers[0]

        is_there = False

        def look() -> None:
            nonlocal is_there
            # The disk may have room for one more only, and an earlier view may have begun one.
            give_up(self._run.checkpoints)
            with suppress(OSError):  # to write one fails as well then, and is tried again
                is_there = folder_of(self._run.checkpoints, step).exists()

        # What keepers write may take any time.
        self._do_together(network, step, self.from_memory.finish if leads and self.from_memory is not None else None)
        with self.watched("a look at checkpoints"):
            self._do_together(network, step, look if leads else None)
        if self._sum(network, torch.ones(1) * is_there).item():
            self._owed = False
            return
        began = time.monotonic()
        stages = self._training.chunks
        live = live_holders(self._training.job, frozenset(view.servers))
        writers = [live[stage][0] for stage in stages]
        # Where the optimizer is in shards, all stages of a server have the same writer.
        states = self._training.stage_states(network, writers[0]) if writers else []
        pairs = zip(writers, stages, states, strict=True)
        mine = [(stage, state) for writer, stage, state in pairs if writer == self._server]

        # A server of an earlier view may still be writing.
        partial = attempt_folder(self._run.checkpoints, step, str(view.epoch))

        def write() -> None:
            for stage, state in mine:
                write_shard(partial / shard(stage, self._rank.number), state)

        def finish() -> None:
            complete(self._run.checkpoints, self.manifest(step), partial, self._run.keep)

        with self.watched("a save"):
            self._owed = self._do_together(network, step, write if mine else None) or self._do_together(
                network, step, finish if leads else None
            )
        if self._owed and leads:
            give_up(self._run.checkpoints)
        if self.from_memory is not None:
            self.from_memory.failed = False
        ended = time.monotonic()
        self._due_again = ended + max(AGAIN, COSTS * (ended - began))

    @property
    def is_owed(self) -> bool:
        """Whether the last one that was due could not be written."""
        return self._owed or (self.from_memory is not None and self.from_memory.failed)

    @property
    def is_tried_again(self) -> bool:
        """Whether it is time to try again, as far as this rank knows."""
        return self.is_owed and time.monotonic() >= self._due_again

    def _do_together(self, network: Network, step: int, part: Callable[[], None] | None) -> bool:
        """Wait until all ranks of the view have done their parts.

        A disk may take longer than an operation waits for a silent partner, so all meet again and again meanwhile.

        Args:
            network: of the view.
            step: of the checkpoint.
            part: what this rank does; None for nothing.

        Returns:
            Whether any part has failed. One of the last checkpoint raises RunFailed.
        """
        doing = [] if part is None else [start_call(on_own_device(part), f"writes the checkpoint of {step}")]
        failed = False
        warned_at = time.monotonic() + DISK
        try:
            while True:
                ended, busy = wait(doing, self._run.durations.transfer / 3)
                if busy and time.monotonic() >= warned_at:
                    warned_at = math.inf
                    text = (
                        f"checkpoint: {self._server} has been writing step {step} for {DISK:g} s, and all servers wait"
                    )
                    self._reporter.tell(InstantLine("warning", now(), str(self._server), text))
                failed = failed or any(self._has_failed(step, each) for each in ended)
                told = torch.tensor([len(busy), failed], dtype=torch.float32)
                all_busy, failures = self._sum(network, told).tolist()
                if not all_busy:
                    return bool(failures)
        finally:
            # What it writes is about to change.
            wait(doing)

    def _has_failed(self, step: int, done: Future[None]) -> bool:
        """Whether a part could not be done, so that it is tried again; one of the last checkpoint is not."""
        try:
            done.result()
        except RunFailed as error:
            if step == self._run.iterations:
                raise
            self._reporter.tell(InstantLine("warning", now(), str(self._server), str(error)))
            return True
        return False

    def _sum(self, network: Network, tensor: torch.Tensor) -> torch.Tensor:
        """Over all ranks: those of one number meet, and then those of each server. Who has it knows that all came."""
        network.all.sum(tensor)
        network.ranks.sum(tensor)
        return tensor


class Cut(NamedTuple):
    """How a model's layers are cut into stages, evenly.

    Attributes:
        layers: of the model.
        stages: how many.
    """

    layers: int
    stages: int

    def of_stage(self, stage: int) -> range:
        """The layers of a stage."""
        size = self.layers // self.stages
        return range(stage * size, (stage + 1) * size)


def cut_of(folder: Path, manifest: Manifest) -> Cut:
    """How the model was cut when a checkpoint was made.

    Args:
        folder: of the checkpoint.
        manifest: of it.

    Raises:
        RunError: nothing can be cut as it says.
    """
    layers, stages = (manifest.settings.get(each) for each in ("layers", STAGES))
    if not (isinstance(layers, int) and isinstance(stages, int) and stages > 0 and layers % stages == 0):
        raise RunError(f"{folder}: its manifest says that {layers!r} layers are in {stages!r} stages")
    return Cut(layers, stages)


def find_fault(folder: Path) -> str:
    """Why no run can go on from a checkpoint, whatever its settings; empty if it is whole. It reads all of it."""
    if damage := find_damage(folder):
        return damage
    try:
        cut_of(folder, manifest_of(folder))
    except UserError as error:
        return str(error)
    return ""


def shard(stage: int, rank: int) -> str:
    """What one rank's part of a stage is called in a checkpoint."""
    return f"stage-{stage}/tensor-{rank}"


def read_recut(folder: Path, stage: int, rank: int, cut: Cut, written: Cut) -> dict[str, torch.Tensor]:
    """A stage's state that a checkpoint holds, by the names that the stage has for itself.

    Args:
        folder: of the checkpoint.
        stage: which one is asked for.
        rank: whose part of it.
        cut: into stages, of which this is one.
        written: how the model was cut when the checkpoint was made. What is read may hold more than the stage then.

    Raises:
        RunError: it is damaged, or cannot be read.
    """
    mine = cut.of_stage(stage)
    state: dict[str, torch.Tensor] = {}
    for other in range(written.stages):
        theirs = written.of_stage(other)
        if mine.start < theirs.stop and theirs.start < mine.stop:
            ahead = theirs.start - mine.start
            # Torch would read altered numbers without a word.
            if damage := find_damage(folder, [shard(other, rank)]):
                raise RunError(damage)
            for name, tensor in read_stage(folder, shard(other, rank)).items():
                state[_LAYER.sub(lambda found: str(int(found[0]) + ahead), name)] = tensor  # noqa: B023 - called at once
    if written.stages == 1 and stage == cut.stages - 1:
        # The only stage of a tied model has one matrix for both ends, and the last of several has a copy of it.
        for name, tensor in [*state.items()]:
            state.setdefault(name.replace("embedding.word_embeddings", "output_layer"), tensor)
    return state
