"""A server of a GPT joins: it holds what its peer holds, to the bit, though steps are made while it copies."""

import msgspec
import pytest

from harness.examples import QUICK
from recycle.control.membership.view import Member
from recycle.job import Server
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run import Run
from recycle.megatron.gpt.server import GptServer
from recycle.megatron.gpt.text import ByteText
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.runtime.step.trainee import Trainee
from tests.runtime.recover.survivors import JOB, JOINER, noting, survive

MODEL = ModelOptions(2, 32, 2, 16, micro_batch_size=2, tied=True, dropout=0.1, learning_rate=0.01)
PEER = Member(Server(0, 0), 0)


class Reached(GptServer):
    """A server whose versions recovery reaches through it, so that they can be noted."""

    @property
    def trainee(self):
        return Trainee(versions=self, connection=self, durable=self.checkpoints, followed=self)

    @property
    def newest(self):
        return self.training.newest

    @property
    def oldest(self):
        return self.training.oldest

    def drop(self):
        self.training.drop()

    def undo(self):
        self.training.undo()

    def enter(self, network, step):
        return self.training.enter(network, step)

    def state(self):
        return self.training.state()

    def adopt(self, step, state):
        self.training.adopt(step, state)

    def listen(self, listener):
        self.training.listen(listener)

    def follow(self, parts):
        self.training.follow(parts)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.long, id="plain"),
        pytest.param({"clip": 1e6}, marks=pytest.mark.long, id="nothing clips"),
        pytest.param({"clip": 1e-3}, id="each step clips"),
        pytest.param({"clip": 1e6, "exact": True}, id="exact"),
    ],
)
def test_a_joiner_trains_on_with_the_parameters_and_moments_of_its_peer(tmp_path, changes):
    run = Run(make_plan(JOB, (), Mode(), QUICK), msgspec.structs.replace(MODEL, **changes), 1, tmp_path)

    def make(server, reporter):
        run_on_cpu()
        text = ByteText(bytes(range(256)) * 100, "numbers", MODEL.sequence, MODEL.micro_batch_size, MODEL.seed)
        return noting(Reached)(run, server, text, reporter, keep=True)

    _, notes = survive(tmp_path, make, lambda view: JOINER in view.members)
    followed = [note for note in notes[JOINER] if note.kind == "follow"]
    began = [note for note in notes[JOINER] if note.kind == "iterate"]
    assert followed[-1].digest == began[0].digest
    held = {note.step: note.digest for note in notes[PEER] if note.kind == "iterate"}
    assert len({note.digest for note in began}) == len(began) >= 10
    for note in (*followed, *began):
        assert held[note.step] == note.digest
