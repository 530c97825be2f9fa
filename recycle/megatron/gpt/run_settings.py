"""The settings of a training run: what is trained, for how long, and where it is written."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec
import torch

from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.durations import Durations
from recycle.control.store.etcd_cluster import EtcdCluster
from recycle.files import read_bytes, write_whole
from recycle.megatron.gpt.model import ModelOptions
from recycle.placement import placement_text
from recycle.placing.decision import Outlook
from recycle.plan.batch import Batch
from recycle.plan.catalogue import Catalogue
from recycle.plan.document import load_plan, save_plan
from recycle.plan.plan import Plan
from recycle.record.recording import PLAN, SETTINGS
from recycle.runtime.checkpoint_folders import CHECKPOINTS, folder_of
from recycle.runtime.device import DeviceKind
from recycle.runtime.errors import RunError
from recycle.runtime.net.network import TransportKind
from recycle.runtime.step.checkpoint import KEPT
from recycle.state.redundancy import Redundancy
from recycle.version import __version__

# They have files of their own, are where the files are, or are not for everybody to read.
NOT_SAVED = ("plan", "folder", "cluster")

MAY_DIFFER = ("sequence_parallel", "distributed_optimizer")
"""Of a model's settings: those with which the same files are trained on."""

NO_PARITY = "off"
"""What the settings of a run say that keeps whole copies, or nothing."""


class Run(msgspec.Struct, frozen=True):
    """A training run.

    Attributes:
        plan: a lowered plan; the servers that are failed in it take no part at first.
        model: what is trained.
        iterations: the step at which training ends.
        folder: where events and checkpoints go.
        resume: go on from the newest checkpoint in the folder.
        checkpoint_every: iterations between checkpoints; 0 for none but at the end.
        evaluate_every: iterations between evaluations on held-out text; 0 for none.
        text: a file to train on; Python's standard library if None.
        catalogue: plans made before; None to make them when servers fail.
        host: the address that this machine's part of the run binds to.
        durations: how long servers wait for each other.
        keep: how many of the newest checkpoints are kept.
        resume_from: a checkpoint or the run of one to go on from, as long as this run has none of its own.
        restarts: how often a server that has crashed is started again, within an hour.
        redundancy: how hosts' keepers hold each version in memory; None where they do not.
        cluster: where the store is in etcd; None where the run has a store of its own.
        device: what servers compute on.
        nccl: whether NCCL carries the tensors of GPUs; otherwise they go through host memory.
        outlook: how long servers stay as they are, where chunks move between servers; None where they do not.
    """

    plan: Plan
    model: ModelOptions
    iterations: int
    folder: Path
    resume: bool = False
    checkpoint_every: int = 0
    evaluate_every: int = 0
    text: Path | None = None
    catalogue: Path | None = None
    host: str = LOOPBACK
    durations: Durations = Durations()
    keep: int = KEPT
    resume_from: Path | None = None
    restarts: int = 0
    redundancy: Redundancy | None = None
    cluster: EtcdCluster | None = None
    device: DeviceKind = "cpu"
    nccl: bool = False
    outlook: Outlook | None = None

    @property
    def goes_on(self) -> bool:
        """Whether it begins where another start, or run, has ended."""
        return self.resume or self.resume_from is not None

    @property
    def saves_from_memory(self) -> bool:
        """Whether keepers write the checkpoints that are due before the end."""
        return self.redundancy is not None and self.checkpoint_every > 0

    def is_due(self, step: int) -> bool:
        """Whether there is to be a checkpoint of a step before the end."""
        return self.checkpoint_every > 0 and step % self.checkpoint_every == 0

    def newest_due(self, step: int) -> int:
        """The newest step, up to a step, of which there is to be a checkpoint; 0 if there is none."""
        return step - step % self.checkpoint_every

    @property
    def ranks(self) -> int:
        """How many ranks a server has."""
        return self.model.tensor_parallel

    @property
    def transport(self) -> TransportKind:
        """What carries the tensors of its servers."""
        if self.device == "cpu":
            return "gloo"
        return "nccl" if self.nccl else "staged"

    @property
    def events(self) -> Path:
        """The folder of the servers' events."""
        return self.folder / "events"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / CHECKPOINTS

    @property
    def is_done(self) -> bool:
        """Whether it has come to its end, of which there is always a checkpoint."""
        return folder_of(self.checkpoints, self.iterations).exists()

    @property
    def settings(self) -> dict[str, Any]:
        """What must be the same to go on from a checkpoint; which servers live, and what each holds, may differ."""
        batch = Batch(self.plan.job)
        # Earlier releases could train in half precision, and no run goes on from that in another.
        shape = {"pipelines": batch.rows, "micro_batches": batch.length, "fp16": False}
        model: dict[str, Any] = msgspec.to_builtins(self.model)
        return shape | {name: value for name, value in model.items() if name not in MAY_DIFFER}

    def settings_in_memory(self, text: str) -> dict[str, Any]:
        """What must be the same for a run to go on from copies in memory: there, stages are as they were cut.

        Args:
            text: tells texts apart.
        """
        job, redundancy = self.plan.job, self.redundancy
        kept = {"text": text, "stages": job.depth, "placement": self._placement}
        # Any one copy is enough, however many are made. Of parity it has to be known how many pieces there are.
        parity = str(redundancy) if redundancy is not None and redundancy.needed > 1 else NO_PARITY
        return self.settings | kept | {"parity": parity}

    @property
    def _placement(self) -> str:
        job = self.plan.job
        return placement_text(job.chunks) if job.even else str(job.layout)

    def fingerprint(self, text: str, catalogue: Catalogue | None) -> dict[str, str]:
        """What must be the same in all processes of the run.

        Args:
            text: tells texts apart.
            catalogue: the run's; None for none.
        """
        release = {"recycle": __version__, "torch": torch.__version__, "mode": str(self.plan.mode)}
        release |= {"device": self.device} | {name: str(getattr(self.model, name)) for name in MAY_DIFFER}
        release |= {"stages": str(self.plan.job.depth), "placement": self._placement}
        release |= {} if catalogue is None else {"catalogue": catalogue.checksum}
        return {name: str(value) for name, value in (self.settings | release | {"text": text}).items()}

    def save(self) -> None:
        """Write what a process that joins later needs.

        Raises:
            UserError: it cannot be written.
        """
        save_plan(self.plan, self.folder / PLAN, private=True)
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name not in NOT_SAVED}
        content = msgspec.json.format(msgspec.json.encode(fields, enc_hook=self._saved))
        write_whole(self.folder / SETTINGS, content, private=True)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The run that is going on in a folder.

        Raises:
            UserError: there is none, or it cannot be read.
        """
        plan = load_plan(folder / PLAN)
        try:
            saved = msgspec.json.decode(
                read_bytes(folder / SETTINGS), type=_Saved, dec_hook=lambda _, value: folder / value
            )
        except (msgspec.DecodeError, RecursionError) as error:
            raise RunError(f"{folder / SETTINGS}: this is no run of this release: {error}") from error
        return cls(plan=plan, folder=folder, **msgspec.structs.asdict(saved))

    def _saved(self, value: object) -> str:
        """A path as it is found from any working directory, and below the run's folder on any host."""
        if not isinstance(value, Path):
            return str(value)
        with suppress(ValueError):
            return str(value.absolute().relative_to(self.folder.absolute()))
        return str(value.absolute())


_Saved = msgspec.defstruct(
    "_Saved",
    [(each.name, each.type) for each in msgspec.structs.fields(Run) if each.name not in NOT_SAVED],
    frozen=True,
    forbid_unknown_fields=True,
)
"""What a run's file holds: all of its other fields, none left out."""
