#!/usr/bin/env python
"""Training without Megatron: stages are torch modules, and a plan trains them around a dead server.

Usage: python scripts/plain_torch.py [--dead W1_2] [--steps 20]

The model learns to shift rows of numbers by one place. Its loss does not depend on who is dead.
"""

import argparse
import copy
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.distributed import TCPStore
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.multiprocessing import start_processes

from recycle.control.membership.view import View
from recycle.job import Server
from recycle.jobfile import load_job
from recycle.plan.mode import Mode
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves
from recycle.record.recorder import Recorder
from recycle.runtime.device import numbers
from recycle.runtime.execute.seeds import seed_of, seeded
from recycle.runtime.execute.stage import Held, MicroBatch, TensorSpec
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.connect import connect
from recycle.runtime.plain_words import plain
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.update import TorchUpdate

HOST = "127.0.0.1"
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
    last = next(each for each in view.servers if each.stage == JOB.depth - 1)

    def serve(rank: int, port: int) -> None:
        server = view.servers[rank]
        network = connect(TCPStore(HOST, port, wait_for_workers=False), view, server)
        stages = cut(build_model(), JOB.depth)
        boundary = boundaries(stages, inputs(MicroBatch(0, 0, 0)))[server.stage]
        stage = TorchStage(stages[server.stage], server.stage, boundary, inputs, targets, LOSS, 1 / JOB.micro_batches)
        place, method = (JOB.pipelines, [server.stage], JOB.depth), Method(staggered=True)
        update = TorchUpdate(MainParameters(stage.parameters()), torch.optim.AdamW, *place, method)
        update.connect(network)
        worker = Worker(plan, [stage], update, network, Recorder(server))
        for step in range(options.steps):
            losses = worker.run(step).losses
            if server == last:
                print(f"step {step}: loss {sum(losses) / len(losses):.5f}")
        network.barrier()

    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        count = len(view.servers)
        processes = start_processes(serve, (port,), count, join=False, start_method="fork")  # type: ignore[no-untyped-call]
        # It starts threads, which a fork would lose.
        store = TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    while not processes.join():
        pass
    del store


Data = Callable[[MicroBatch], torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Boundary(NamedTuple):
    """What a stage takes from its neighbours and gives to them; None where there is no neighbour."""

    input: TensorSpec | None
    output: TensorSpec | None


class TorchContext(NamedTuple):
    """What F leaves for I: the input that gets a gradient, and the root of the graph."""

    input: torch.Tensor | None
    root: torch.Tensor


class TorchStage:
    """A torch module as one stage of a pipeline.

    The backward pass is split by torch's own means (torch.distributed.pipelining's zero-bubble support), which work for
    many modules and not for all: the stage tries them on one micro-batch, and says why where they fail.

    Args:
        module: the stage's layers; one tensor in, one tensor out.
        number: which stage it is.
        boundary: what it takes and gives.
        inputs: the first stage's input of a micro-batch.
        targets: what the last stage compares its output with.
        loss: the last stage's loss, a mean over the micro-batch.
        scale: what a micro-batch's loss counts in its pipeline's: 1 / M of the full job, whichever servers are dead.
        seed: of dropout and the like.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        number: int,
        boundary: Boundary,
        inputs: Data,
        targets: Data,
        loss: Loss,
        scale: float,
        seed: int = 0,
    ) -> None:
        self.input, self.output = boundary
        self._module = module
        self._number = number
        self._inputs = inputs
        self._targets = targets
        self._loss = loss
        self._scale = scale
        self._seed = seed
        self._contexts: dict[MicroBatch, TorchContext] = {}
        self._owed: dict[MicroBatch, list[dict[str, Any]]] = {}
        self._losses: dict[MicroBatch, torch.Tensor] = {}
        self.cannot_split = self._try_split()

    def forward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Run the module and keep its graph."""
        context = self._run(self._module, micro_batch, received)
        self._contexts[micro_batch] = context
        if self.output is None:
            self._losses[micro_batch] = context.root.detach()
            return None
        return context.root.detach()

    def evaluate(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Run the module as in inference; the data is that of the micro-batch it is asked for."""
        training = self._module.training
        self._module.eval()
        with torch.no_grad():
            output = self._run(self._module, micro_batch, received).root
        self._module.train(training)
        if self.output is None:
            self._losses[micro_batch] = output
            return None
        return output

    def input_gradient(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """Gradient of the input alone; on the first stage, where no server needs it, the whole backward pass."""
        if self.input is None:
            self._owed[micro_batch] = []
            return self.backward(micro_batch, received)
        context = self._contexts.pop(micro_batch)
        gradient, groups = self._split(self._module, context, received)
        self._owed[micro_batch] = groups
        return gradient

    def weight_gradient(self, micro_batch: MicroBatch) -> None:
        """Add the weight gradients that I left; none on the first stage."""
        groups = self._owed.pop(micro_batch)
        if groups:
            stage_backward_weight(self._weights(self._module), groups)

    def backward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """A plain backward pass."""
        context = self._contexts.pop(micro_batch)
        torch.autograd.backward([context.root], None if received is None else [received])
        return None if context.input is None else context.input.grad

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The module's."""
        return self._module.parameters()

    def take_losses(self) -> Mapping[MicroBatch, float]:
        """The losses since the last call; empty but on the last stage."""
        losses, self._losses = self._losses, {}
        values = (each / self._scale for each in numbers(losses.values()))
        return dict(zip(losses, values, strict=True))

    def held(self) -> Held:
        """The graphs that wait for I, and the parts of them that wait for W."""
        return Held(len(self._contexts), len(self._owed))

    def drop(self) -> None:
        """Forget all graphs and losses."""
        self._contexts.clear()
        self._owed.clear()
        self._losses.clear()

    def _run(self, module: torch.nn.Module, micro_batch: MicroBatch, received: torch.Tensor | None) -> TorchContext:
        source = None if received is None else received.requires_grad_()
        with seeded(seed_of(self._seed, micro_batch, self._number)):
            output: torch.Tensor = module(self._inputs(micro_batch) if source is None else source)
        if self.output is None:
            output = self._loss(output, self._targets(micro_batch)) * self._scale
        return TorchContext(source, output)

    def _split(
        self, module: torch.nn.Module, context: TorchContext, received: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, list[dict[str, Any]]]:
        gradients, groups = stage_backward_input(
            [context.root], None if received is None else [received], [context.input], self._weights(module)
        )
        return gradients[0], groups

    @staticmethod
    def _weights(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
        return (each for each in module.parameters() if each.requires_grad)

    def _try_split(self) -> str:
        """Compare a split backward pass with a plain one on a copy of the module."""
        if self.input is None:
            return ""
        received = torch.randn_like(self.input.empty())
        output = None if self.output is None else torch.randn_like(self.output.empty())
        micro_batch = MicroBatch(0, 0, 0)
        plain, split = copy.deepcopy(self._module), copy.deepcopy(self._module)
        expected = self._run(plain, micro_batch, received.clone())
        torch.autograd.backward([expected.root], None if output is None else [output])
        try:
            gradient, groups = self._split(split, self._run(split, micro_batch, received.clone()), output)
            stage_backward_weight(self._weights(split), groups)
        except Exception as error:
            return f"torch cannot split its backward pass ({_last_cause(error)})"
        assert expected.input is not None
        if not _close(gradient, expected.input.grad):
            return "torch's split backward pass gives another gradient of its input than a plain one"
        for (name, mine), other in zip(split.named_parameters(), plain.parameters(), strict=True):
            if not _close(mine.grad, other.grad):
                return f"torch's split backward pass gives {name} another gradient than a plain one"
        return ""


def cut(layers: torch.nn.Sequential, depth: int) -> list[torch.nn.Module]:
    """Stages of nearly equal numbers of layers.

    Raises:
        AssertionError: there are fewer layers than stages.
    """
    assert len(layers) >= depth, f"{len(layers)} layers make no {depth} stages"
    edges = [stage * len(layers) // depth for stage in range(depth + 1)]
    return [layers[begin:end] for begin, end in pairwise(edges)]


def boundaries(stages: Sequence[torch.nn.Module], sample: torch.Tensor) -> list[Boundary]:
    """What each stage takes and gives, found by passing a sample of the first stage's input through all of them."""
    specs: list[TensorSpec | None] = [None]
    with torch.no_grad():
        for module in stages:
            sample = module(sample)
            specs.append(TensorSpec(tuple(sample.shape), sample.dtype, sample.device))
    specs[-1] = None
    return [Boundary(before, after) for before, after in pairwise(specs)]


def _close(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.allclose(first, second, rtol=1e-4, atol=1e-6 * (1 + second.abs().max().item()))


def _last_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return plain(str(error))[:160]


if __name__ == "__main__":
    main()
