"""Steps that each stage makes itself with Megatron's optimizer, at the end of its own list.

So stages do not wait for each other at the optimizer, and sums of gradients can be exact. The training code goes on
before it is known whether a step was right, and waits only when it looks at something that depends on that.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from recycle.megatron.flag.run.protected import ProtectedExecution
from recycle.megatron.flag.steps.redone import as_in_iteration
from recycle.megatron.flag.steps.whole_stage import DdpParameters, adopt_untrained, untrained
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.stage_training import StageTraining
from recycle.plan.plan import Plan
from recycle.runtime.errors import RunError, ViewBroken
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.net.network import Network, meet
from recycle.runtime.step.method import Method
from recycle.runtime.step.update import TorchUpdate

BEHIND = 2
"""Iterations by which training codes that have all come to one view can be apart: where stages step on their own, one
may be two versions ahead of what keepers have of another, and in the iteration after them."""


class Stepping(NamedTuple):
    """How stages step.

    Attributes:
        optimizer: Megatron's.
        staggered: whether stages go on without waiting for each other.
        clip: the largest norm that the gradient of the whole model may have.
        exact: whether sums of gradients have the same bits whichever servers live.
        looks: whether the training code looks at the norm of the last of so many iterations.
        finite: whether a gradient that is not finite ends the run.
        repeats: whether keepers have versions, so that all may go back to one where a stage is lost.
    """

    optimizer: Any
    staggered: bool
    clip: float
    exact: bool
    looks: Callable[[int], bool]
    finite: bool
    repeats: bool = False


class StageSteps:
    """Steps of the stages' own; the training code only believes that it makes them.

    Args:
        execution: whose steps they are.
        stage: what steps; its chunk is in Megatron's DDP.
        version: with which training begins.
        stepping: how.

    Attributes:
        versions: of the stage.
        whole: what the newest one is made of.
        shards: none: each server holds all of its stage.
    """

    def __init__(self, execution: ProtectedExecution, stage: MegatronStage, version: int, stepping: Stepping) -> None:
        job, inner = execution.job, stepping.optimizer.optimizer
        self._execution = execution
        self._stage = stage
        self._stepping = stepping
        self._parameters = DdpParameters(stage.parameters(), inner)
        addends = job.pipelines * job.micro_batches if stepping.exact else 0
        method = Method(stepping.clip, stepping.staggered, addends, keep=True, prepare=self._parameters.prepare)
        number = execution.server.stage
        self._update = TorchUpdate(self._parameters, lambda _: inner, job.pipelines, [number], job.depth, method)
        self._update.adopt(version)
        self.versions = StageTraining([stage], [number], self._update, execution.recorder)
        self.whole = _OwnVersions(self.versions, stage.model)
        self.shards = None
        self._settled = version
        # How many iterations of the view all make sure of at once; in which none was made yet.
        self._unsure, self._begins = 0, False
        stepping.optimizer.step = self.step

    @property
    def undone(self) -> int:
        """See Steps."""
        return self.versions.undone

    def step(self) -> tuple[bool, float | None, int | None]:
        """What Megatron's optimizers say: whether a step was made, the norm if it is known, no number of zeros."""
        progress = self._execution.progress
        if not self._stepping.looks(progress.iteration(progress.reached - 1) + 1):
            return True, None, None
        self.settle()
        return True, self._update.norm, None

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """See Steps."""

        def share_losses() -> None:
            # Before anybody steps, all peers know the losses.
            self._execution.share_losses(network)

        self._begins = self._stepping.repeats
        self._unsure = BEHIND if self._begins else 0
        self.versions.connect(plan, network, hooks, notices, after_reduction=share_losses)

    def train(self) -> None:
        """See Steps."""
        before = self._execution.progress.reached
        found, planned = self._stage.micro_batches, self._execution.job.micro_batches
        if found != planned:
            raise RunError(
                f"num_microbatches is {found}, and the plan has {planned} per pipeline: where stages step on their "
                "own, all iterations have as many"
            )
        self._parameters.keep_settings(before)
        while self.versions.newest <= before:
            if self.versions.newest < before:
                self.catch_up()
                # Those who took a stage up come to this iteration as one does at first.
                self._execution.let_in()
            else:
                self._advance()

    def evaluate(self) -> None:
        """See Steps."""
        self.versions.worker.evaluate()

    def settle(self) -> None:
        """See Steps."""
        while self._settled < self._execution.progress.reached:
            try:
                self._make_sure()
            except ViewBroken as error:
                self._execution.recover(error)

    def complete(self) -> None:
        """Nothing: each server steps all of its stage."""

    def entered(self) -> None:
        """See Steps."""
        self._settled = self.versions.newest

    def arrive(self, version: int) -> None:
        """See Steps."""
        self._settled = version

    def catch_up(self) -> None:
        """See Steps."""
        with as_in_iteration([self._stage], self._execution.job.micro_batches):
            while self.versions.newest < self._execution.progress.reached:
                self._advance()

    def _advance(self) -> None:
        """Make an iteration, or get into the next view."""
        execution = self._execution
        try:
            if self._begins:
                # The first instruction has keepers hold a view's first version. Who takes a stage up from there is past
                # all calls that went before it, so nobody may be in one of them.
                meet(execution.network)
                self._begins = False
            execution.recorder.clear()
            with execution.collectives.redoable():
                self.versions.worker.run(execution.progress.after(self.versions.newest).iteration)
            self._require_finite()
            if self._unsure:
                # Those who took a stage up make sure of a version wherever their training code looks at one, and that
                # of all others may be past it.
                self._unsure -= 1
                self._make_sure()
        except ViewBroken as error:
            execution.enter_next_view(error)

    def _make_sure(self) -> None:
        """Have the present version be what it will stay, and wait for all others.

        Raises:
            ViewBroken: somebody is gone.
        """
        self.versions.worker.settle()
        self._require_finite()
        meet(self._execution.network)
        self._settled = self.versions.newest

    def _require_finite(self) -> None:
        if self._stepping.finite and math.isinf(self._update.norm):
            raise RunError(
                f"the norm of the gradient is {self._update.norm}: go on from a checkpoint with a smaller --lr, or "
                "with --clip-grad"
            )


class _OwnVersions:
    """A version, which is what is trained, and whatever else the chunk holds; it is TakenOver.

    Args:
        versions: of the stage.
        model: its chunk.
    """

    def __init__(self, versions: StageTraining, model: torch.nn.Module) -> None:
        self._versions = versions
        self._model = model

    def state(self, _: int) -> Mapping[str, torch.Tensor]:
        """See TakenOver."""
        return {**self._versions.state(), **untrained(self._model)}

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """See TakenOver."""
        self._versions.adopt(step, state)
        adopt_untrained(self._model, state)
