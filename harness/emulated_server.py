"""An emulated server that survives: its state is a counter, and everything else is real.

What would be wrong after a recovery shows at once: the counter is what iteration i must start from, and in every
reduction the peers compare theirs.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from harness.emulated_stage import EmulatedStage, EmulatedUpdate, Sleeper
from recycle.holding import placed
from recycle.job import Job, Server
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.record.recording import IterationLine
from recycle.record.reporting import Reporter
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.execute.stage import Redo
from recycle.runtime.execute.worker import IterationReport, Worker
from recycle.runtime.net.network import Network
from recycle.runtime.net.peers import ChunkPeers, chunk_peers
from recycle.runtime.recover.view_reports import now
from recycle.runtime.step.listener import Listener
from recycle.runtime.step.trainee import Trainee


class Emulated(NamedTuple):
    """What is emulated.

    Attributes:
        job: the planned durations.
        staggered: whether stages step on their own.
        slot: seconds for one unit of the job's time.
        iterations: the step at which it ends.
        size: numbers in a message.
    """

    job: Job
    staggered: bool
    slot: float
    iterations: int
    size: int = 1024


class EmulatedServer:
    """Sleeps the durations of a server's stages: Followable and Connectable, with a Loop, but without checkpoints.

    Args:
        emulated: what.
        server: which server this is.
        reporter: gets what happens.
    """

    def __init__(self, emulated: Emulated, server: Server, reporter: Reporter) -> None:
        self.recorder = Recorder(server, capacity=10_000)
        self._emulated = emulated
        self._server = server
        self._reporter = reporter
        self._sleeper = Sleeper()
        job, slot, size = emulated.job, emulated.slot, emulated.size
        chunks = placed(job, server).chunks
        self._stages = [EmulatedStage(job, server, each, slot, self._sleeper, size) for each in chunks]
        self._update: CountedUpdate | None = None
        self._worker: Worker | None = None
        self._listener: Listener | None = None
        self._version = torch.zeros(1, dtype=torch.int64)
        self._kept = False

    @property
    def trainee(self) -> Trainee:
        """What recovery gets of it."""
        return Trainee(versions=self, connection=self, followed=self)

    @property
    def newest(self) -> int:
        """See Versioned."""
        return int(self._version)

    @property
    def oldest(self) -> int:
        """See Versioned."""
        return self.newest - self._kept

    @property
    def last(self) -> int:
        """See Loop."""
        return self._emulated.iterations

    @property
    def done(self) -> bool:
        """See Connectable."""
        return self.newest >= self.last

    def drop(self) -> None:
        """See Versioned."""
        if self._worker is not None:
            self._worker.close()
        for stage in self._stages:
            stage.drop()

    def undo(self) -> None:
        """See Versioned."""
        assert self._kept, f"version {self.newest - 1} is not held"
        if self._listener is not None:
            self._listener.undone()
        self._version -= 1
        self._kept = False

    def enter(self, network: Network, step: int) -> int:
        """See Versioned: every step is right."""
        return step

    def state(self) -> Mapping[str, torch.Tensor]:
        """See Versioned."""
        return {"version": self._version}

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Versioned."""
        assert int(state["version"]) == step
        self._version.copy_(state["version"])
        self._kept = False

    def listen(self, listener: Listener | None) -> None:
        """See Followable."""
        self._listener = listener
        if self._update is not None:
            self._update.listener = listener

    def follow(self, parts: Sequence[torch.Tensor]) -> None:
        """See Followable."""
        (before,) = parts
        assert int(before) == self.newest, f"version {int(before)} was stepped, and this is version {self.newest}"
        self._version += 1
        self._kept = True

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """See Connectable."""
        emulated = self._emulated
        update = EmulatedUpdate(emulated.job, emulated.staggered, network, emulated.slot, self._sleeper)
        counted = CountedUpdate(update, chunk_peers(emulated.job, network), self._version)
        counted.listener = self._listener
        self._update = counted
        self._epoch = network.view.epoch
        self._worker = Worker(plan, self._stages, counted, network, self.recorder, hooks, notices)

    @property
    def owes_checkpoint(self) -> bool:
        """See Loop: it makes none."""
        return False

    @property
    def saves_again(self) -> bool:
        """See Loop."""
        return False

    def between(self, step: int, *, save: bool, settle: bool) -> None:
        """See Loop: nothing is due."""

    def iterate(self, step: int) -> None:
        """See Loop."""
        assert step == self.newest, f"iteration {step} begins with version {self.newest}"
        start = time.monotonic()
        self.recorder.clear()
        assert self._worker is not None
        assert self._update is not None
        self._update.stepped = False
        try:
            self._worker.run(step)
        finally:
            if self._update.stepped:
                # Also where this server was interrupted before it had let go of all transfers: the others may go on
                # from there, and nobody would make this iteration again.
                self._kept = True
                self._tell_of(step, self._worker.report, time.monotonic() - start)

    def _tell_of(self, step: int, report: IterationReport, seconds: float) -> None:
        line = IterationLine(
            str(self._server), step, seconds, list(report.losses), report.peak_memory, self._epoch, now()
        )
        self._reporter.tell(line, self.recorder.take_spans())


class CountedUpdate:
    """An emulated update that counts its steps, and compares the count with the peers'.

    Args:
        update: what sleeps.
        peers: of the server.
        version: the count.

    Attributes:
        stepped: whether it made a step since this was last set to false.
        listener: hears of every step; None for nobody.
    """

    def __init__(self, update: EmulatedUpdate, peers: Sequence[ChunkPeers], version: torch.Tensor) -> None:
        self.stepped = False
        self.listener: Listener | None = None
        self._update = update
        self._peers = peers
        self._version = version

    @property
    def confirms(self) -> bool:
        """See StageUpdate."""
        return self._update.confirms

    def collect(self) -> None:
        """See StageUpdate."""

    def validate(self) -> Redo:
        """See StageUpdate."""
        return self._update.validate()

    def start_reduction(self, chunk: int) -> None:
        """See StageUpdate."""
        self._update.start_reduction(chunk)

    def reduce(self, chunk: int, *, last: bool) -> None:
        """Compare, and sleep the reduction."""
        peers = next(each for each in self._peers if chunk in each.chunks)
        total, count = self._version.clone(), len(peers.servers)
        peers.group.sum(total)
        assert int(total) == count * int(self._version), f"peers are at other versions than {int(self._version)}"
        self._update.reduce(chunk, last=last)

    def step(self, chunk: int, *, last: bool) -> Redo:
        """Sleep the step, and count the last one."""
        if last:
            if self.listener is not None:
                self.listener.stepping((self._version,))
            self._version += 1
            self.stepped = True
        return self._update.step(chunk, last=last)
