"""A server of the project's own trainer: what it tells of its iterations."""

import os
import signal
from types import SimpleNamespace

from harness.examples import QUICK, paper_job
from recycle.control.membership.durations import Durations
from recycle.faults.menu import Faults
from recycle.job import Server
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.gpt.server import GptServer
from recycle.megatron.gpt.training import train
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.recording import IterationLine, RecoveryLine
from recycle.runtime.execute.worker import Worker

MODEL = ModelOptions(2, 32, 2, 16, micro_batch_size=2)
LAST_MOMENT, VICTIM = 3, Server(0, 0)
# A busy machine must not make anybody else look dead.
PATIENT = Durations(beat=0.05, silence=60.0, hang=60.0, rebuild=20.0, answer=60.0)


def test_an_iteration_that_all_have_made_when_the_view_ends_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr("recycle.megatron.gpt.forward.standard_library", lambda: bytes(range(256)) * 100)
    attempt = Worker._attempt

    def end_late(worker, step):
        made, network = attempt(worker, step), worker._network
        if step == LAST_MOMENT and network.view.epoch == 0:
            # All have made their step, and none has left the iteration, when a server dies.
            network.barrier()
            if network.server == VICTIM:
                os.kill(os.getpid(), signal.SIGKILL)
            network.barrier()
        return made

    monkeypatch.setattr(Worker, "_attempt", end_late)
    job = paper_job(pipelines=2, stages=2, micro_batches=2, released=0)
    told, begun = set(), set()

    def watch(event):
        if isinstance(event, IterationLine) and event.losses:
            told.add(event.step)
        elif isinstance(event, RecoveryLine):
            begun.add(event.step)

    plan = make_plan(job, (), Mode(), QUICK)
    run = Run(plan, MODEL, 6, tmp_path, durations=PATIENT)
    train(run, watch, lambda failed: make_plan(job, failed, Mode(), QUICK), Faults())
    assert begun == {LAST_MOMENT + 1}, "nobody makes the iteration again"
    assert told == set(range(6))


def test_what_all_took_back_before_a_view_is_made_again_before_it_is_saved():
    saved = []

    def run(step):
        training.newest = step + 1

    worker = SimpleNamespace(run=run, settle=lambda: None)
    training = SimpleNamespace(newest=3, worker=worker, update=SimpleNamespace(speculation=None))
    checkpoints = SimpleNamespace(from_memory=None, save=lambda step, _: saved.append((step, training.newest)))
    server = GptServer.__new__(GptServer)
    server.training, server.checkpoints, server.network = training, checkpoints, object()
    server.recorder = SimpleNamespace(clear=lambda: None)
    server._run = SimpleNamespace(iterations=8, evaluate_every=0, is_due=lambda step: step == 4)
    server.between(4, save=False, settle=False)
    assert saved == [(4, 4)]
