"""Steps that Megatron makes when the schedule returns, as without recycle, after a vote.

An iteration ends with a vote in two rounds. In the first, each server says that its gradients are whole; in the second,
that it has heard this from all others. Only then does the training code step its optimizer: so where each stage has a
live server, no step has to be taken back, and no version but the present one is kept.

Where all servers of a stage are dead, and keepers have its state, the others may be a step ahead of that. They go back
to the version that keepers have, and make the iteration again with those who took the stage up, though their training
code has gone on already.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from megatron.core import parallel_state
from torch.distributed import ReduceOp

from recycle.megatron.flag.run.protected import ProtectedExecution
from recycle.megatron.flag.state.rejoin_state import TakenOver
from recycle.megatron.flag.steps.auxiliary_losses import AuxiliaryLosses
from recycle.megatron.flag.steps.gradients import LiveGradients
from recycle.megatron.flag.steps.redone import RepeatedStep, Reruns, as_in_iteration
from recycle.megatron.flag.steps.shard_optimizers import find_distributed
from recycle.megatron.flag.steps.sharded_optimizer import STEP, ShardedOptimizer
from recycle.megatron.flag.steps.whole_stage import WholeStage
from recycle.megatron.flag.world.progress import Asked
from recycle.megatron.shared.patching import replace
from recycle.megatron.shared.stage import MegatronStage
from recycle.plan.plan import Plan
from recycle.runtime.device import own_device
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.network import Network, meet

NOTES = "notes of a vote"
"""What the first round of a vote gives, among the results of calls that servers tell each other after a failure."""

NOTHING = -1.0
"""What Megatron takes for a figure that a rank does not have."""


class Vote:
    """Steps of the training code's; they are Versioned themselves.

    Args:
        execution: whose steps they are.
        stages: whose gradients are made whole, rising; their chunks are in Megatron's DDP.
        version: with which training begins.
        optimizer: Megatron's.
        repeats: whether a step may have to be made again.
        overlaps: whether a distributed optimizer gives parameters to peers while the next forward pass begins.

    Attributes:
        newest: how many iterations are done here; the optimizer has stepped for all but perhaps the last of them.
        oldest: how many are surely done everywhere.
        undone: how often this server went back to an older version.
        shards: of a distributed optimizer; None where each server holds all of its stage.
    """

    def __init__(
        self,
        execution: ProtectedExecution,
        stages: Sequence[MegatronStage],
        version: int,
        optimizer: Any,
        *,
        repeats: bool = False,
        overlaps: bool = False,
    ) -> None:
        self.newest = self.oldest = version
        self.undone = 0
        self._execution = execution
        self._stages = stages
        model = torch.nn.ModuleList(stage.model for stage in stages)
        sharded = bool(find_distributed(optimizer))
        self.shards = ShardedOptimizer(execution, model, optimizer, overlaps=overlaps) if sharded else None
        self._whole = self.shards or WholeStage(model, optimizer)
        self._auxiliary = AuxiliaryLosses(execution.job.pipelines)
        self._reruns = Reruns()
        self._repeated = RepeatedStep(optimizer, execution.collectives, lambda: self.newest) if repeats else None
        self._heard = version
        self._worker: Worker | None = None
        self._begins = False

    @property
    def versions(self) -> Self:
        """See Steps."""
        return self

    @property
    def whole(self) -> TakenOver:
        """See Steps."""
        return self._whole

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """See Steps."""
        execution, self._begins = self._execution, True
        shares = None if self.shards is None else self.shards.shares(network)
        update = LiveGradients(self._stages, network, plan.job, execution.same_parameters, execution.losses, shares)
        if self.shards is not None:
            self.shards.connect(network)
        recorder, early = execution.recorder, update.early_sums
        self._worker = Worker(plan, self._stages, update, network, recorder, hooks, notices, early)

    def train(self) -> None:
        """See Steps."""
        before = self._execution.progress.reached
        while self.oldest <= before:
            if self.newest < before:
                self.catch_up()
                # Those who took the stage up come to this iteration as one does at first.
                self._execution.let_in()
                self._zero_gradients()
                continue
            try:
                self._make(before + 1)
            except ViewBroken as error:
                self._execution.enter_next_view(error)
                if self.newest <= before:
                    self._zero_gradients()

    def evaluate(self) -> None:
        """See Steps."""
        self._connected.evaluate()

    def settle(self) -> None:
        """Nothing: Megatron steps all stages together."""

    def complete(self) -> None:
        """See Steps."""
        if self.shards is not None:
            self.shards.complete()

    def entered(self) -> None:
        """See Steps."""
        self.oldest = self.newest
        noted = self._execution.collectives.kept(NOTES, self.newest)
        if self._heard != self.newest and noted is not None:
            # The first round was over, and this server has not heard so before that view ended.
            self._reruns.know(noted)

    def arrive(self, version: int) -> None:
        """See Steps."""
        self.newest = self.oldest = version

    def catch_up(self) -> None:
        """See Steps: where keepers had not the present version of a stage, this server went back."""
        while self.newest < self._execution.progress.reached:
            self._make_again()

    def drop(self) -> None:
        """See Versioned."""
        if self._worker is not None:
            self._worker.close()
        self._drop()

    def undo(self) -> None:
        """The last iteration has to be made again."""
        self.newest = self.oldest

    def enter(self, network: Network, step: int) -> int:
        """See Versioned."""
        return step

    def state(self) -> Mapping[str, torch.Tensor]:
        """Nothing: a server that has not heard of a version has its gradients all the same."""
        return {}

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """All gradients are whole, and this server has heard it now; or with a state, it went back to that."""
        self.newest = step
        if state:
            self.oldest = step
            self.undone += 1
            # Shards are stepped by all their holders again; who has them has no other way to the parameters.
            self._execution.collectives.forget(STEP, step)
            self._execution.collectives.forget(NOTES, step)

    def _make(self, goal: int) -> None:
        """Get to a version by the iteration before it, but for the optimizer's step."""
        network = self._execution.network
        if self.newest < goal:
            self._make_gradients(self._execution.progress.after(goal - 1))
            # All servers come here: it is the first round.
            noted = self._reruns.share(network)
            self._execution.collectives.keep(NOTES, goal, noted)
            self.newest = self._heard = goal
        meet(network)
        self.oldest = goal

    def _make_again(self) -> None:
        """Make the iteration after the present version again, or get into the next view."""
        assert self._repeated is not None, "nobody goes back but to what keepers have"
        execution, goal, undone = self._execution, self.newest + 1, self.undone
        progress = execution.progress
        asked = progress.after(self.newest)
        apart = self._reruns.again(asked.iteration, execution.epoch, progress.is_repeated(self.newest))
        with as_in_iteration(self._stages, asked.micro_batches), self._auxiliary.settled(), apart:
            self._zero_gradients()
            try:
                self._make(goal)
            except ViewBroken as error:
                execution.enter_next_view(error)
        if self.newest == goal and self.undone == undone:
            self._repeated.repeat(goal)

    def _zero_gradients(self) -> None:
        if self._repeated is not None:
            self._repeated.prepare()
        for model in self._models:
            model.zero_grad_buffer()

    def _drop(self) -> None:
        for stage in self._stages:
            stage.drop()

    def _make_gradients(self, asked: Asked) -> None:
        if self._begins and self._repeated is not None:
            # The first instruction has keepers hold a view's first version. Who takes a stage up from there is past all
            # calls that went before it, so nobody may be in one of them.
            meet(self._execution.network)
            self._begins = False
        if self.shards is not None:
            self.shards.begin()
        self._drop()
        self._auxiliary.begin(asked.iteration)
        self._reruns.begin(self._execution.epoch)
        self._execution.recorder.clear()
        self._connected.bring(asked.micro_batches)
        with self._execution.collectives.redoable():
            self._connected.run(asked.iteration)
        if self.shards is not None:
            self.shards.know()
        self._auxiliary.share(self._execution.network.peers)

    @property
    def _models(self) -> list[Any]:
        return [stage.model for stage in self._stages]

    @property
    def _connected(self) -> Worker:
        assert self._worker is not None, "it is in no view"
        return self._worker


def as_told(figure: float | None, **_: object) -> float | None:
    """A figure as stages would tell it to each other, which is a float32: all of them know it already."""
    return figure and torch.tensor(figure, dtype=torch.float32).item()


class StepOutcome:
    """Whether a step was made, the norm, and the number of zeros where it is logged: of all stages together.

    Stages tell it to each other in one call, for all that the training code asks.

    Args:
        optimizer: Megatron's; its step is replaced by one whose outcome all stages share.
        counts_zeros: whether the training code asks for the number of zeros.
        training: Megatron's module of this name, where those names are replaced by which it asks.
    """

    def __init__(self, optimizer: Any, counts_zeros: bool, training: Any) -> None:
        self._own_step = optimizer.step
        self._own_greatest: Callable[..., float | None] = training.reduce_max_stat_across_model_parallel_group
        self._made, self._asked = True, 2 if counts_zeros else 1
        self._figures: list[float | None] = []
        optimizer.step = self._step
        replace(training, "logical_and_across_model_parallel_group", lambda *_, **__: self._made)
        replace(training, "reduce_max_stat_across_model_parallel_group", self._greatest)

    def _step(self) -> Any:
        result = made, *figures = self._own_step()
        figures = [NOTHING if each is None else float(each) for each in figures[: self._asked]]
        said = torch.tensor([float(not made), *figures], device=own_device())
        torch.distributed.all_reduce(said, ReduceOp.MAX, parallel_state.get_model_parallel_group())
        failed, *greatest = said.tolist()
        self._made, self._figures = not failed, [None if each == NOTHING else each for each in greatest]
        return result

    def _greatest(self, figure: float, **group: Any) -> float | None:
        """What was shared with the step, in the order in which it is asked for; all else is asked as ever."""
        return self._figures.pop(0) if self._figures else self._own_greatest(figure, **group)
