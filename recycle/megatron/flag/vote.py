"""Steps that Megatron makes when the schedule returns, as without recycle, after a vote.

An iteration ends with a vote in two rounds. In the first, each server says that its gradients are whole; in the second,
that it has heard this from all others. Only then does the training code step its optimizer: so no step ever has to be
taken back, and no version but the present one is kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch

from recycle.megatron.flag.auxiliary_losses import AuxiliaryLosses
from recycle.megatron.flag.doorway import TakenOver
from recycle.megatron.flag.gradients import LiveGradients
from recycle.megatron.flag.protected import ProtectedExecution
from recycle.megatron.flag.shard_optimizers import find_distributed
from recycle.megatron.flag.sharded_optimizer import ShardedOptimizer
from recycle.megatron.flag.whole_stage import WholeStage
from recycle.megatron.shared.stage import MegatronStage
from recycle.plan.plan import Plan
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.network import Network, meet


class Vote:
    """Steps of the training code's; they are Versioned themselves.

    Args:
        execution: whose steps they are.
        stages: whose gradients are made whole, rising; their chunks are in Megatron's DDP.
        version: with which training begins.
        optimizer: Megatron's.

    Attributes:
        newest: how many iterations are done here; the optimizer has stepped for all but perhaps the last of them.
        oldest: how many are surely done everywhere.
        shards: of a distributed optimizer; None where each server holds all of its stage.
    """

    def __init__(
        self, execution: ProtectedExecution, stages: Sequence[MegatronStage], version: int, optimizer: Any
    ) -> None:
        self.newest = self.oldest = version
        self._execution = execution
        self._stages = stages
        model = torch.nn.ModuleList(stage.model for stage in stages)
        sharded = bool(find_distributed(optimizer))
        self.shards = ShardedOptimizer(execution, model, optimizer) if sharded else None
        self._whole = self.shards or WholeStage(model, optimizer)
        self._auxiliary = AuxiliaryLosses(execution.job.pipelines)
        self._worker: Worker | None = None

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
        execution = self._execution
        update = LiveGradients(self._stages, network, plan.job.depth, execution.same_parameters)
        self._worker = Worker(plan, self._stages, update, network, execution.recorder, hooks, notices)

    def train(self, step: int) -> None:
        """See Steps."""
        goal = self.newest + 1
        while self.oldest < goal:
            try:
                if self.newest < goal:
                    self._make_gradients(step)
                    meet(self._execution.network)
                    self.newest = goal
                meet(self._execution.network)
                self.oldest = goal
            except ViewBroken as error:
                self._execution.enter_next_view(error)
                if self.newest < goal:
                    models: list[Any] = [stage.model for stage in self._stages]
                    for model in models:
                        model.zero_grad_buffer()

    def evaluate(self) -> None:
        """See Steps."""
        self._connected.evaluate()

    def settle(self) -> None:
        """Nothing: Megatron steps all stages together."""

    def entered(self) -> None:
        """See Steps."""
        self.oldest = self.newest

    def arrive(self, version: int) -> None:
        """See Steps."""
        self.newest = self.oldest = version

    def catch_up(self) -> None:
        """Nothing: between two iterations, all are as far as each other."""

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
        """All gradients are whole, and this server has heard it now."""
        self.newest = step

    def _drop(self) -> None:
        for stage in self._stages:
            stage.drop()

    def _make_gradients(self, step: int) -> None:
        self._drop()
        self._auxiliary.begin(step)
        self._execution.recorder.clear()
        self._connected.bring(self._stages[-1].micro_batches)
        with self._execution.rank_calls.inside():
            self._connected.run(step)
        self._execution.share_losses(self._execution.network)
        self._auxiliary.share(self._execution.network.peers)

    @property
    def _connected(self) -> Worker:
        assert self._worker is not None, "it is in no view"
        return self._worker
