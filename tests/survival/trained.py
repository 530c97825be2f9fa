"""Runs of a small GPT with dropout, and their losses."""

import hashlib
from itertools import groupby
from pathlib import Path

import msgspec
import pytest
import torch

from harness.examples import QUICK, paper_job
from harness.plain_lines import require_plain
from recycle.errors import RunFailed
from recycle.faults.fired import load_fired
from recycle.faults.menu import Fault, Faults
from recycle.faults.pattern import InstructionPattern
from recycle.job import Server
from recycle.megatron.gpt import forward
from recycle.megatron.gpt.checkpointing import shard
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.gpt.training import train
from recycle.plan.mode import Mode
from recycle.plan.moves import Mover
from recycle.planner.make import make_plan
from recycle.record.recording import EvaluationLine, InstantLine, IterationLine, ViewLine
from recycle.record.reporting import Event
from recycle.runtime.checkpoint_folders import checkpoints, folder_of
from recycle.runtime.launch.supervise.supervisor import FIRED
from recycle.runtime.step.checkpoint import read_stage
from tests.survival.emulated import DURATIONS

JOB = paper_job(pipelines=3, stages=2, micro_batches=2, released=0)
MODEL = ModelOptions(2, 32, 2, 16, micro_batch_size=2, tied=True, dropout=0.1, learning_rate=0.01)
ITERATIONS = 12
SAME = 1e-5


class Left(msgspec.Struct):
    """What a run has told, and its error."""

    events: list[Event]
    error: str


class Trained:
    """A run of a model, to its end or to its error.

    Attributes:
        job: what is trained.
        model: its model.
        mover: see train.
    """

    job = JOB
    model = MODEL
    mover: Mover | None = None

    def __init__(self, folder, *faults, on_event=lambda _: None, iterations=ITERATIONS, **options):
        self.run = self.describe(folder, iterations=iterations, **options)
        self.events = []
        self.error = ""

        def watch(event):
            self.events.append(event)
            on_event(event)

        try:
            train(self.run, watch, self.make, Faults(faults), mover=self.mover)
        except RunFailed as error:
            self.error = str(error)
        require_plain(self.error, *map(str, self.events))
        path = folder / FIRED
        fired = [each.fault for each in load_fired(path)]
        assert sorted(fired) == sorted(map(str, faults)), self.story
        assert sorted(self.texts("fault")) == sorted(map(str, faults)), self.story

    @classmethod
    def undisturbed(cls, runs, iterations=ITERATIONS, **options):
        """The run that nothing befalls, which tests compare with; see SharedRuns. Nobody changes its folder."""

        def make(folder):
            run = cls(folder / "run", iterations=iterations, **options)
            return Left(run.events, run.error)

        text = hashlib.sha256(forward.standard_library()).hexdigest()
        settings = (cls.__module__, cls.__qualname__, text, cls.describe(Path(), iterations, **options))
        left, folder = runs.run(settings, make, Left)
        found = cls.__new__(cls)
        found.run = cls.describe(folder / "run", iterations, **options)
        found.events, found.error = left.events, left.error
        return found

    @classmethod
    def make(cls, failed):
        return make_plan(cls.job, failed, Mode(), QUICK)

    @classmethod
    def describe(cls, folder, iterations, changes=(), durations=DURATIONS, **options):
        model = msgspec.structs.replace(cls.model, **dict(changes))
        return Run(cls.make(()), model, iterations, folder, durations=durations, **options)

    @property
    def story(self):
        told = [str(each) for each in self.events if not isinstance(each, (IterationLine, EvaluationLine))]
        return "\n".join([f"error: {self.error}", *told])

    def of(self, kind):
        return [each for each in self.events if isinstance(each, kind)]

    def texts(self, kind):
        return [each.text for each in self.of(InstantLine) if each.kind == kind]

    @property
    def views(self):
        return list({each.epoch: each for each in self.of(ViewLine)}.values())

    @property
    def steps(self):
        return [int(each.name.removeprefix("step-")) for each in checkpoints(self.run.checkpoints)]

    def losses(self, kind=IterationLine):
        """By step; all servers that tell a step, and all times that it is made, tell the same."""
        told = sorted((each.step, each.losses) for each in self.of(kind) if each.losses)
        found = {}
        for step, group in groupby(told, key=lambda each: each[0]):
            first, *others = [losses for _, losses in group]
            assert all(each == pytest.approx(first, rel=SAME) for each in others)
            found[step] = first
        return found

    def require_same(self, reference, *kinds):
        """No loss differs from those of a run that nothing befell.

        Args:
            reference: that run.
            kinds: of lines with losses; those of iterations if there are none.
        """
        assert self.error == "", self.story
        for kind in kinds or (IterationLine,):
            found, expected = self.losses(kind), reference.losses(kind)
            assert list(found) == list(expected), self.story
            for step, losses in found.items():
                assert losses == pytest.approx(expected[step], rel=SAME), f"step {step}\n{self.story}"

    def require_same_bits(self, reference):
        """The last checkpoint is that of a run that nothing befell, in every bit."""
        assert self.error == "", self.story
        last = [folder_of(each.run.checkpoints, each.run.iterations) for each in (self, reference)]
        for chunk in range(len(self.job.stages)):
            found, expected = (read_stage(each, shard(chunk, 0)) for each in last)
            assert found.keys() == expected.keys(), self.story
            assert [name for name in found if not torch.equal(found[name], expected[name])] == [], self.story


def fault(kind, server="W1_0", step=3, op=None, **fields):
    server = Server.parse(server)
    return Fault(
        kind, (server,), step=step, instruction=op and InstructionPattern(f"{server.stage}{op.value}"), **fields
    )
