"""The worker: one server's part in a run, iteration by iteration."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from recycle.job import Server
from recycle.plan.dependency import other_server_need
from recycle.plan.instruction import Instruction, Op
from recycle.plan.memory import memory_changes
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.runtime.errors import NotFinite, RunError
from recycle.runtime.execute.executor import Executor, Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.execute.stage import MicroBatch, PipelineStage, Redo, StageUpdate
from recycle.runtime.execute.transport import Transport
from recycle.runtime.net.network import Network
from recycle.runtime.net.transfer_key import Carried

FORWARD = (Op.F, Op.SEND_F, Op.RECV_F)
NEEDS = {Op.F: Carried.OUTPUT, Op.I: Carried.GRADIENT}
"""What is received for an instruction that needs one of this phase on another server."""


class IterationReport(NamedTuple):
    """What one server can say of an iteration.

    Attributes:
        losses: of all micro-batches of all pipelines, by home and number, as every server of the last stage knows
            them; empty on the others.
        peak_memory: the most that was held here for micro-batches, counted as they came and went, in the job's unit.
    """

    losses: tuple[float, ...]
    peak_memory: int


class _Program:
    """A list in two parts: what belongs to single micro-batches, and what comes when all of them are done."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.work = [each for each in instructions if not each.op.is_update]
        self.update = [each for each in instructions if each.op.is_update]


class Worker:
    """Runs a server's instruction list over a stage.

    Args:
        plan: a lowered plan in which the network's server is alive.
        stage: what computes.
        update: what reduces and steps.
        network: the groups of the plan's view.
        recorder: gets the start and end of every instruction.
        hooks: what is told of every instruction.
        notices: what servers tell each other in every reduction, if they do.
        waiting: a plan in which the same servers are alive; it is run where all stages wait for each other anyway, and
            may be quicker there.

    Raises:
        RunError: the plan cannot run on this stage.
    """

    def __init__(
        self,
        plan: Plan,
        stage: PipelineStage,
        update: StageUpdate,
        network: Network,
        recorder: Recorder,
        hooks: Sequence[Hooks] = (),
        notices: NoticeExchange | None = None,
        waiting: Plan | None = None,
    ) -> None:
        server = network.server
        self._program = _Program(require_program(plan, server, stage))
        self._waiting = _Program(require_program(waiting, server, stage)) if waiting else self._program
        self._depth = plan.job.depth
        self._micro_batches = plan.job.micro_batches
        self._pipelines = plan.job.pipelines
        self._stage = stage
        self._network = network
        self._notices = notices
        self._losses: tuple[float, ...] = ()
        self._update = update
        self._redo = Redo.NOTHING
        self._recorder = recorder
        self._transport = Transport(network, stage, recorder)
        self._results: dict[tuple[Op, int, int], torch.Tensor] = {}
        self._step = 0
        self._memory = memory_changes(plan.job.stages[server.stage])
        self._peak_memory = 0
        self._forward_program = [each for each in self._program.work if each.op in FORWARD]
        handlers = {
            Op.F: self._compute,
            Op.I: self._compute,
            Op.W: self._compute,
            Op.B: self._compute,
            Op.SEND_F: self._send,
            Op.SEND_B: self._send,
            Op.RECV_F: self._transport.expect,
            Op.RECV_B: self._transport.expect,
            Op.REDUCE: self._reduce,
            Op.STEP: self._update_step,
        }
        self._executor = Executor(handlers, recorder, hooks)
        self._evaluator = Executor(handlers | {Op.F: self._evaluate}, Recorder(server, capacity=0))

    def run(self, step: int) -> IterationReport:
        """Execute the list, and again if the step before it was not right.

        Nothing of the iteration is left after it but the parameters' new values.

        Raises:
            InstructionFailed: an instruction raised.
            ViewBroken: somebody is gone. This worker and its stage's unfinished micro-batches are of no use then.
        """
        while not self._attempt(step):
            self._stage.drop()
        return self.report

    @property
    def report(self) -> IterationReport:
        """Of the last iteration whose list was executed; also where the view ended right after its step."""
        return IterationReport(self._losses, self._peak_memory)

    def settle(self, step: int) -> None:
        """Find out whether the last step was right, and make it so if not; before anybody looks at the parameters.

        Args:
            step: of the next iteration.

        Raises:
            InstructionFailed: an instruction raised.
            ViewBroken: somebody is gone.
        """
        while self._update.validate() is Redo.LAST:
            self.run(step - 1)

    def _attempt(self, step: int) -> bool:
        """Execute the list once; whether that was not in vain, as far as is known."""
        self._step = self._recorder.iteration = step
        self._peak_memory = 0
        program = self._waiting if self._update.waits else self._program
        self._transport.begin(program.work)
        self._executor.run(program.work)
        assert not self._results, f"computed and never sent: {list(self._results)}"
        assert self._stage.held() == (0, 0), f"left after the iteration: {self._stage.held()}"
        redo = self._update.validate()
        if redo is Redo.NOTHING:
            self._executor.run(program.update)
            redo = self._redo
        self._transport.finish()
        if redo is Redo.LAST:
            self._stage.drop()
            self.run(step - 1)
        return redo is Redo.NOTHING

    def evaluate(self) -> tuple[float, ...]:
        """Execute the forward part of the list on held-out data, the same each time; all losses, on the last stage.

        Raises:
            InstructionFailed: an instruction raised.
            ViewBroken: somebody is gone.
        """
        self._step = 0
        self._transport.begin(self._forward_program)
        self._evaluator.run(self._forward_program)
        self._transport.finish()
        return self._share_losses()

    def close(self) -> None:
        """Let go of everything. Its handlers refer to it, so that it would hold the network for long otherwise."""
        vars(self).clear()

    def _compute(self, instruction: Instruction) -> None:
        op, home, index = instruction.op, instruction.home, instruction.micro_batch
        need = other_server_need(op, instruction.stage, self._depth)
        received = self._transport.take(NEEDS[need.phase], home, index) if need else None
        micro_batch = MicroBatch(self._step, home, index)
        result: torch.Tensor | None
        if op is Op.F:
            result = self._stage.forward(micro_batch, received)
            self._count_memory()
        elif op is Op.W:
            self._stage.weight_gradient(micro_batch)
            self._update.collect()
            return
        else:
            act = self._stage.backward if op is Op.B else self._stage.input_gradient
            result = act(micro_batch, received)
            self._update.collect()
        if result is not None:
            self._results[Op.SEND_F if op is Op.F else Op.SEND_B, home, index] = result

    def _evaluate(self, instruction: Instruction) -> None:
        home, number = instruction.home, instruction.micro_batch
        received = self._transport.take(Carried.OUTPUT, home, number) if instruction.stage else None
        result = self._stage.evaluate(MicroBatch(self._step, home, number), received)
        if result is not None:
            self._results[Op.SEND_F, home, number] = result

    def _count_memory(self) -> None:
        activations, owed = self._stage.held()
        # Counted by what the stage really holds: its micro-batches by the rule's amounts, and not by a walk.
        held = activations * self._memory[Op.F].taken + owed * self._memory[Op.W].freed
        self._peak_memory = max(self._peak_memory, held)

    def _send(self, instruction: Instruction) -> None:
        key = (instruction.op, instruction.home, instruction.micro_batch)
        self._transport.send(instruction, self._results.pop(key))

    def _reduce(self, _: Instruction) -> None:
        if self._notices is not None:
            self._notices.exchange()
        self._losses = self._share_losses()
        for place, loss in enumerate(self._losses):
            if not math.isfinite(loss):
                home, number = divmod(place, self._micro_batches)
                raise NotFinite(f"the loss of micro-batch {home}.{number} is {loss}")
        self._update.reduce()

    def _share_losses(self) -> tuple[float, ...]:
        """The losses of the whole batch, so that none is lost with the server that computed it."""
        losses = self._stage.take_losses()
        if losses is None or self._network.server.stage < self._depth - 1:
            return ()
        table = torch.zeros(self._pipelines, self._micro_batches, dtype=torch.float64)
        for micro_batch, loss in losses.items():
            table[micro_batch.home, micro_batch.number] = loss
        self._network.peers.sum(table)
        return tuple(table.flatten().tolist())

    def _update_step(self, _: Instruction) -> None:
        self._redo = self._update.step()


def require_program(plan: Plan, server: Server, stage: PipelineStage) -> tuple[Instruction, ...]:
    """The list of a server, if it can run on a stage.

    Raises:
        RunError: servers hold several chunks, the plan is not lowered, the server is not in it, or the stage cannot
            split its backward pass.
    """
    if not plan.job.standard:
        raise RunError("plan: its servers hold several chunks, and training takes one chunk per server")
    if plan.form != "lowered":
        raise RunError("plan: its form is 'compute', which has no transfers: run recycle lower on it first")
    program = plan.programs.get(server)
    if program is None:
        raise RunError(f"plan: {server} has no instructions in it: it is failed there, or the job has no such server")
    split = next((each for each in program if each.op is Op.W or each.op is Op.I), None)
    if split is not None and stage.cannot_split:
        raise RunError(
            f"plan: {split} computes one half of a backward pass, and stage {server.stage} of this model cannot: "
            f"{stage.cannot_split}; make the plan with --backward fused"
        )
    return program
