#!/usr/bin/env python
"""Training without Megatron: stages are torch modules, and a plan trains them around a dead server.

Usage: python scripts/plain_torch.py [--dead W1_2] [--steps 20]

The model learns to shift rows of numbers by one place. Its loss does not depend on who is dead.
"""

import argparse

import msgspec
import torch

from harness.local import LocalProcess, launch
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.jobfile import load_job
from recycle.plan.mode import Mode
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves
from recycle.record.recorder import Recorder
from recycle.runtime.execute.seeds import seed_of, seeded
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.execute.torch_stage import TorchStage, boundaries, cut
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.connect import connect
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.update import TorchUpdate

WIDTH, ROWS, LOSS = 32, 8, torch.nn.functional.mse_loss
JOB = load_job(None, {"pipelines": 3, "stages": 4, "micro_batches": 6, "optimizer": 3})


def build_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(JOB.depth - 1)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH))


def inputs(micro_batch: MicroBatch) -> torch.Tensor:
    """The same three numbers give the same data on every server, so any peer can take over."""
    with seeded(seed_of(1, micro_batch, 0)):
        return torch.rand(ROWS, WIDTH) - 0.5


def targets(micro_batch: MicroBatch) -> torch.Tensor:
    return inputs(micro_batch).roll(1, dims=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dead", type=Server.parse, nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    plan = make_plan(JOB, options.dead, Mode(), Effort((MaxMoves(2000),), "2000 moves"))
    view = View.of(plan)

    def serve(member: LocalProcess) -> None:
        server = view.servers[member.rank]
        network = connect(member.store(), view, server)
        stages = cut(build_model(), JOB.depth)
        boundary = boundaries(stages, inputs(MicroBatch(0, 0, 0)))[server.stage]
        stage = TorchStage(stages[server.stage], server.stage, boundary, inputs, targets, LOSS, 1 / JOB.micro_batches)
        place, method = (JOB.pipelines, [server.stage], JOB.depth), Method(staggered=True)
        update = TorchUpdate(MainParameters(stage.parameters()), torch.optim.AdamW, *place, method)
        update.connect(network)
        worker = Worker(plan, [stage], update, network, Recorder(server))
        member.report(msgspec.json.encode([sum(worker.run(step).losses) for step in range(options.steps)]))
        network.barrier()

    reports: dict[int, list[float]] = {}
    launch(len(view.servers), serve, lambda rank, content: reports.update({rank: msgspec.json.decode(content)}))
    for step, losses in enumerate(zip(*reports.values(), strict=True)):
        print(f"step {step}: loss {max(losses) / JOB.pipelines / JOB.micro_batches:.5f}")


if __name__ == "__main__":
    main()
