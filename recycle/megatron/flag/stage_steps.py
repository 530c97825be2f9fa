"""Training in which each stage steps Megatron's optimizer itself, at the end of its own list.

So stages do not wait for each other at the optimizer, and sums of gradients can be exact. The training code goes on
before it is known whether a step was right: when it looks at something that depends on that, it waits.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from megatron.core.utils import get_model_config

from recycle.megatron.flag.protection import Protection
from recycle.megatron.flag.schedule import SurvivingSchedule, Training
from recycle.megatron.ties import tie_of
from recycle.runtime.errors import RunError, ViewBroken
from recycle.runtime.execute.stage import StageUpdate
from recycle.runtime.net.network import Network
from recycle.runtime.net.process_groups import ReplaceableGroup
from recycle.runtime.step.checkpoint import give_state, stage_state
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.tokens import TokenTotal
from recycle.runtime.step.update import Method, TorchUpdate

SETTINGS = ("lr", "weight_decay")
"""What Megatron's scheduler changes in an optimizer's groups between two iterations."""


class Stepping(NamedTuple):
    """How stages step.

    Attributes:
        optimizer: Megatron's.
        clip: the largest norm that the gradient of the whole model may have.
        exact: whether sums of gradients have the same bits whoever is alive.
        looks: whether the training code looks at the norm of the last of so many iterations.
        finite: whether a gradient that is not finite ends the run.
    """

    optimizer: Any
    clip: float
    exact: bool
    looks: Callable[[int], bool]
    finite: bool


class SteppingSchedule(SurvivingSchedule):
    """A surviving schedule that ends with the stage's own step."""

    _stepping: Stepping

    def __init__(self, training: Training, protection: Protection, groups: Sequence[ReplaceableGroup]) -> None:
        super().__init__(training, protection, groups)
        self._goal = self._settled = 0
        self._settings: dict[int, list[dict[str, Any]]] = {}

    def take_over(self, stepping: Stepping) -> None:
        """Step this optimizer from now on; the training code only believes that it does."""
        self._stepping = stepping
        stepping.optimizer.step = self.step

    def step(self) -> tuple[bool, float | None, int | None]:
        """What Megatron's optimizers say: whether a step was made, the norm if it is known, no number of zeros."""
        if not self._stepping.looks(self._goal):
            return True, None, None
        self.settle()
        return True, self._update.norm, None

    def settle(self) -> None:
        """Wait until the last step is right on all servers."""
        while self._settled < self._goal:
            try:
                with self._own_settings():
                    assert self._worker is not None
                    self._worker.settle(self._goal)
                self._require_finite()
                self._live.barrier()
                self._settled = self._goal
            except ViewBroken as error:
                self._recover(error)

    # What recovery asks for.

    @property
    def newest(self) -> int:
        """See Versioned."""
        return self._update.versions.newest

    @property
    def oldest(self) -> int:
        """See Versioned."""
        return self._update.versions.oldest

    def drop(self) -> None:
        """See Versioned."""
        super().drop()
        self._update.drop()

    def undo(self) -> None:
        """See Versioned."""
        self._update.undo()

    def enter(self, network: Network, step: int) -> int:
        """See Versioned."""
        with self._own_settings():
            return self._update.enter(network, step)

    def state(self) -> Mapping[str, torch.Tensor]:
        """See Versioned."""
        return stage_state(self._named(), self._update.optimizer)

    def adopt(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Versioned."""
        give_state(state, self._named(), self._update.optimizer)
        self._update.adopt(step)

    # An iteration.

    def _start(self, version: int) -> None:
        job, stepping = self._job, self._stepping
        method = Method(
            stepping.clip,
            self._training.plan.mode.optimizer == "staggered",
            job.pipelines * job.micro_batches if stepping.exact else 0,
            keep=True,
            prepare=self._prepare,
        )
        inner = stepping.optimizer.optimizer
        main = DdpParameters(self._chunk.parameters())
        self._update = TorchUpdate(main, lambda _: inner, job.pipelines, self.server.stage, job.depth, method)
        self._update.adopt(version)
        self._goal = self._settled = version

    def _train(self, step: int) -> None:
        assert step == self._goal, f"iteration {step} comes after {self._goal} steps"
        self._settings = {each: self._settings[each] for each in self._settings if each + 1 == step}
        self._settings[step] = self._read_settings()
        self._goal = step + 1
        self._catch_up()

    def _catch_up(self) -> None:
        """Get as far as the training code believes that this server is."""
        while self.newest < self._goal:
            try:
                with self._own_settings():
                    assert self._worker is not None
                    self.recorder.clear()
                    self._worker.run(self.newest)
                self._require_finite()
            except ViewBroken as error:
                self._go_to_next_view(error)

    def _recover(self, error: ViewBroken) -> None:
        self._go_to_next_view(error)
        self._catch_up()

    def _go_to_next_view(self, error: ViewBroken) -> None:
        super()._recover(error)
        if self.newest == self._goal:
            # Who enters a view knows of its first version that it is right.
            self._settled = self._goal

    def _make_update(self, network: Network) -> StageUpdate:
        assert self._stage is not None
        config, depth = get_model_config(self._chunk), self._job.depth
        tie = tie_of(self._chunk, network, depth)

        def finish() -> None:
            if tie is not None:
                tie.reduce()
            # Before anybody steps, all peers know the losses.
            self._share_losses(network)

        tokens = TokenTotal(network, depth, self._stage.take_tokens) if config.calculate_per_token_loss else None
        self._update.connect(network, finish, tokens)
        return self._update

    def _require_finite(self) -> None:
        if self._stepping.finite and math.isinf(self._update.norm):
            raise RunError(
                f"the norm of the gradient is {self._update.norm}: go on from a checkpoint with a smaller --lr, or "
                "with --clip-grad"
            )

    def _named(self) -> Mapping[str, torch.Tensor]:
        return self._update.named(self._chunk)

    # The groups of the optimizer are the training code's; a step that is made again needs what they were.

    def _read_settings(self) -> list[dict[str, Any]]:
        groups: Sequence[dict[str, Any]] = self._update.optimizer.param_groups
        return [{name: group[name] for name in SETTINGS if name in group} for group in groups]

    def _prepare(self, optimizer: torch.optim.Optimizer, iteration: int) -> None:
        for group, settings in zip(optimizer.param_groups, self._settings[iteration], strict=True):
            group.update(settings)

    @contextmanager
    def _own_settings(self) -> Iterator[None]:
        present = self._read_settings()
        try:
            yield
        finally:
            for group, settings in zip(self._update.optimizer.param_groups, present, strict=True):
                group.update(settings)


class DdpParameters(MainParameters):
    """Parameters in Megatron's DDP, which adds gradients to ``main_grad`` itself; the optimizer has the main ones."""

    def __init__(self, parameters: Iterator[torch.nn.Parameter]) -> None:
        self._main = {each: getattr(each, "main_param", each) for each in parameters if each.requires_grad}
        self._gradients: Sequence[torch.Tensor] = ()

    def use(self, gradients: Sequence[torch.Tensor]) -> None:
        """See above."""
        self._gradients = gradients
        for model, gradient in zip(self._main, gradients, strict=True):
            model.main_grad = gradient  # type: ignore[attr-defined]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """See above; between steps no parameter has a gradient, because DDP would add it again."""
        for main, gradient in zip(self._main.values(), self._gradients, strict=True):
            main.grad = gradient
        super().step(optimizer)
        for main in self._main.values():
            main.grad = None
