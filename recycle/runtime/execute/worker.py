"""The worker: one server's part in a run, iteration by iteration."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from recycle.holding import placed
from recycle.job import Server
from recycle.plan.batch import Batch, first_of_each
from recycle.plan.dependency import other_server_need
from recycle.plan.instruction import Instruction, Op
from recycle.plan.memory import memory_changes
from recycle.plan.plan import Plan
from recycle.record.recorder import Recorder
from recycle.runtime.device import settle
from recycle.runtime.errors import NotFinite, RunError, ViewBroken
from recycle.runtime.execute.executor import Executor, Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.execute.p2p import P2PTransfers, key_of
from recycle.runtime.execute.program import Program
from recycle.runtime.execute.stage import EarlySums, MicroBatch, PipelineStage, Redo, StageUpdate
from recycle.runtime.net.network import Network, Reduction, Transfer, confirm
from recycle.runtime.net.peers import chunk_peers, peers_of_last
from recycle.runtime.net.transfer_key import TransferKey

FORWARD = (Op.F, Op.SEND_F, Op.RECV_F)


class IterationReport(NamedTuple):
    """What one server can say of an iteration.

    Attributes:
        losses: of all micro-batches of all pipelines, by home and number, as every server that holds the last stage
            knows them; empty on the others.
        peak_memory: the most that was held here for micro-batches, counted as they came and went, in the job's unit.
    """

    losses: tuple[float, ...]
    peak_memory: int


class Worker:
    """Runs a server's instruction list over its stages.

    Args:
        plan: a lowered plan in which the network's server is alive.
        stages: what computes: one for each chunk that the server holds, rising.
        update: what reduces and steps them.
        network: the groups of the plan's view.
        recorder: gets the start and end of every instruction.
        hooks: what is told of every instruction.
        notices: what servers tell each other in every reduction, if they do.
        early_sums: the update, if it sums parts of a chunk's gradients before all of them are there; then all peers do.

    Raises:
        RunError: the plan cannot run on these stages.
    """

    def __init__(
        self,
        plan: Plan,
        stages: Sequence[PipelineStage],
        update: StageUpdate,
        network: Network,
        recorder: Recorder,
        hooks: Sequence[Hooks] = (),
        notices: NoticeExchange | None = None,
        early_sums: EarlySums | None = None,
    ) -> None:
        server = network.server
        job = plan.job
        self._early_sums = early_sums
        self._early = bool(early_sums) or not job.standard
        self._whole = self._program = Program(require_program(plan, server, stages), self._early, network.one_queue)
        self._micro_batches = job.micro_batches
        self._depth = len(job.stages)
        self._batch = Batch(job)
        self._stages: Mapping[int, PipelineStage] = dict(zip(placed(job, server).chunks, stages, strict=True))
        self._network = network
        self._line = network.line
        peers = chunk_peers(job, network)
        self._peers = {chunk: each.group for each in peers for chunk in each.chunks}
        self._last = peers_of_last(job, peers)
        self._notices = notices
        self._losses: tuple[float, ...] = ()
        self._shared: tuple[torch.Tensor, Reduction] | None = None
        self._update = update
        self._redo = Redo.NOTHING
        self._recorder = recorder
        self._p2p = P2PTransfers(network, self._stages, recorder)
        self._results: dict[TransferKey, torch.Tensor] = {}
        self._step = self._last_made = 0
        self._memory = {chunk: memory_changes(job.stages[chunk]) for chunk in self._stages}
        self._peak_memory = 0
        self._forward_program = [each for each in self._program.work if each.op in FORWARD]
        handlers = {
            Op.F: self._compute,
            Op.I: self._compute,
            Op.W: self._compute,
            Op.B: self._compute,
            Op.SEND_F: self._send,
            Op.SEND_B: self._send,
            Op.RECV_F: self._p2p.expect,
            Op.RECV_B: self._p2p.expect,
            Op.REDUCE: self._reduce,
            Op.STEP: self._update_step,
        }
        self._executor = Executor(handlers, recorder, hooks)
        self._evaluator = Executor(handlers | {Op.F: self._evaluate}, Recorder(server, capacity=0))

    def run(self, step: int) -> IterationReport:
        """Execute the list, and again if the step before it was not right.

        Nothing of the iteration is left after it but the parameters' new values.

        Args:
            step: the iteration, by which data and dropout are chosen. Numbers rise, and some may be left out.

        Raises:
            InstructionFailed: an instruction raised.
            ViewBroken: somebody is gone. This worker and its stages' unfinished micro-batches are of no use then.
        """
        with self._cleared():
            while not self._attempt(step):
                self._drop()
        self._last_made = step
        return self.report

    def bring(self, micro_batches: int) -> None:
        """From now on, iterations have so many micro-batches of each pipeline, where the plan has as many or more.

        Evaluations go on to have all. Pipelines are alike.
        """
        if micro_batches != self._micro_batches:
            whole = (*self._whole.work, *self._whole.update)
            self._program = Program(first_of_each(whole, micro_batches), self._early, self._network.one_queue)
            self._micro_batches = micro_batches

    @property
    def report(self) -> IterationReport:
        """Of the last iteration whose list was executed; also where the view ended right after its step."""
        return IterationReport(self._losses, self._peak_memory)

    def settle(self) -> None:
        """Find out whether the last step was right, and make it so if not; before anybody looks at the parameters.

        Raises:
            InstructionFailed: an instruction raised.
            ViewBroken: somebody is gone.
        """
        with self._cleared():
            while self._update.validate() is Redo.LAST:
                self.run(self._last_made)

    def _attempt(self, step: int) -> bool:
        """Execute the list once; whether that was not in vain, as far as is known."""
        self._step = self._recorder.iteration = step
        self._peak_memory = 0
        program = self._program
        self._p2p.begin(program.work)
        with self._line.list():
            self._executor.run(program.work, self._line)
            self._start_reductions(None)
        assert not self._results, f"computed and never sent: {list(self._results)}"
        left = [stage.held() for stage in self._stages.values()]
        assert not any(map(any, left)), f"left after the iteration: {left}"
        redo = self._update.validate()
        if redo is Redo.NOTHING:
            self._executor.run(program.update)
            redo = self._redo
        else:
            self._p2p.finish()
        if redo is Redo.LAST:
            self._drop()
            self.run(self._last_made)
        return redo is Redo.NOTHING

    def evaluate(self) -> tuple[float, ...]:
        """Execute the forward part of the list on held-out data, the same each time; all losses, on the last stage.

        Raises:
            InstructionFailed: an instruction raised.
            ViewBroken: somebody is gone.
        """
        self._step = 0
        with self._cleared():
            self._p2p.begin(self._forward_program)
            with self._line.list():
                self._evaluator.run(self._forward_program, self._line)
            self._p2p.finish()
            losses = _values(self._start_sharing())
            confirm(self._network)
        return losses

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        """If the view ends in here, nothing of it is left on the device.

        It would be in the way of what the next view starts there, or write to parameters when they are restored.
        """
        try:
            yield
        except ViewBroken:
            if not self._network.ends_are_right:
                # What the device waits for may never come.
                self._network.unblock()
            settle()
            raise

    def close(self) -> None:
        """Let go of everything. Its handlers refer to it, so that it would hold the network for long otherwise."""
        vars(self).clear()

    def _compute(self, instruction: Instruction) -> Transfer | None:
        op, stage = instruction.op, self._stages[instruction.stage]
        received, coming = self._receive(instruction)
        micro_batch = self._micro_batch(instruction)
        result: torch.Tensor | None
        if self._early_sums and instruction.stage in self._program.complete.get(instruction, ())[:1]:
            self._early_sums.expect(instruction.stage)
        if taken := self._memory[instruction.stage][op].taken:
            self._count_memory(taken)
        if op is Op.F:
            result = stage.forward(micro_batch, received)
        elif op is Op.W:
            stage.weight_gradient(micro_batch)
            result = None
        elif op is Op.I:
            result = stage.input_gradient(micro_batch, received)
        else:
            result = stage.backward(micro_batch, received)
        if op is not Op.F:
            self._update.collect()
        self._keep(instruction, result)
        self._start_reductions(instruction)
        return coming

    def _start_reductions(self, behind: Instruction | None) -> None:
        for chunk in self._program.complete.get(behind, ()):
            try:
                self._update.start_reduction(chunk)
            except ViewBroken as error:
                self._line.bear(error)

    def _evaluate(self, instruction: Instruction) -> Transfer | None:
        received, coming = self._receive(instruction)
        self._keep(instruction, self._stages[instruction.stage].evaluate(self._micro_batch(instruction), received))
        return coming

    def _micro_batch(self, instruction: Instruction) -> MicroBatch:
        return MicroBatch(self._step, *self._batch.place(instruction.home, instruction.micro_batch))

    def _receive(self, instruction: Instruction) -> tuple[torch.Tensor | None, Transfer | None]:
        """The result of another stage that an instruction needs: what that left here, or a transfer.

        Returns:
            It, and what is still to be waited for until it is surely there.
        """
        need = other_server_need(instruction.op, instruction.stage, self._depth)
        if need is None:
            return None, None
        key = key_of(Instruction(need.phase, need.stage, instruction.home, instruction.micro_batch))
        result = self._results.pop(key, None)
        return self._p2p.take(key) if result is None else (result, None)

    def _keep(self, instruction: Instruction, result: torch.Tensor | None) -> None:
        """Keep a result until it is sent, or until its neighbour here takes it."""
        if result is not None:
            self._results[key_of(instruction)] = result

    def _count_memory(self, taken: int) -> None:
        # Counted by what the stages really hold: their micro-batches by the rule's amounts, and not by a walk.
        held = taken
        for chunk, stage in self._stages.items():
            activations, owed = stage.held()
            held += activations * self._memory[chunk][Op.F].taken + owed * self._memory[chunk][Op.W].freed
        self._peak_memory = max(self._peak_memory, held)

    def _send(self, instruction: Instruction) -> None:
        self._p2p.send(instruction, self._results.pop(key_of(instruction)))

    def _drop(self) -> None:
        for stage in self._stages.values():
            stage.drop()

    def _reduce(self, instruction: Instruction) -> None:
        first, last = self._program.is_first(instruction), self._program.is_last(instruction)
        if first:
            # Who has reduced says that nothing it has sent was given up.
            self._p2p.finish()
            if self._notices is not None:
                self._notices.exchange()
            self._shared = self._start_sharing()
        if last:
            # All servers that hold the model's last chunk share their losses as soon as they begin to reduce.
            self._take_losses()
        self._update.reduce(instruction.stage, last=last)

    def _take_losses(self) -> None:
        self._losses = _values(self._shared)
        for place, loss in enumerate(self._losses):
            if not math.isfinite(loss):
                home, number = divmod(place, self._batch.length)
                raise NotFinite(f"the loss of micro-batch {home}.{number} is {loss}")

    def _start_sharing(self) -> tuple[torch.Tensor, Reduction] | None:
        """Share the losses of the whole batch, so that none is lost with the server that computed it."""
        if self._last is None:
            return None
        losses = self._stages[self._depth - 1].take_losses()
        if losses is None:
            return None
        table = torch.zeros(self._batch.rows, self._batch.length, dtype=torch.float64)
        for micro_batch, loss in losses.items():
            table[micro_batch.home, micro_batch.number] = loss
        return table, self._last.group.start_sum(table)

    def _update_step(self, instruction: Instruction) -> None:
        self._confirm(instruction.stage)
        self._redo = self._update.step(instruction.stage, last=self._program.is_last(instruction))

    def _confirm(self, chunk: int) -> None:
        """Wait until all peers for a chunk are about to step it, if what has ended here may not have ended right.

        Each comes only if none of its transfers and sums was given up. So if every stage steps, all of them were right:
        a version that some stage has not got is made again.
        """
        if not (self._network.ends_are_right or self._update.confirms):
            self._peers[chunk].sum(torch.zeros(1))


def _values(shared: tuple[torch.Tensor, Reduction] | None) -> tuple[float, ...]:
    """The losses that were shared, once they are there; nothing where none were."""
    if shared is None:
        return ()
    table, reduction = shared
    reduction.wait()
    return tuple(table.flatten().tolist())


def require_program(plan: Plan, server: Server, stages: Sequence[PipelineStage]) -> tuple[Instruction, ...]:
    """The list of a server, if it can run on some stages.

    Args:
        plan: whose list.
        server: which.
        stages: one for each chunk that the server holds, rising.

    Raises:
        PlanFileError: the plan has no transfers.
        RunError: the server is not in it, or a stage cannot split its backward pass.
    """
    plan.require_lowered("plan")
    program = plan.programs.get(server)
    if program is None:
        raise RunError(f"plan: {server} has no instructions in it: it is failed there, or the job has no such server")
    for chunk, stage in zip(placed(plan.job, server).chunks, stages, strict=True):
        split = next((each for each in program if each.stage == chunk and each.op in (Op.W, Op.I)), None)
        if split is not None and stage.cannot_split:
            raise RunError(
                f"plan: {split} computes one half of a backward pass, and {plan.job.chunk_text(chunk)} of this model "
                f"cannot: {stage.cannot_split}; make the plan with --backward fused"
            )
    return program
