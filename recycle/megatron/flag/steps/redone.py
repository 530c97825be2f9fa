"""Iterations that are made again, while the training code is somewhere else."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.rerun_state_machine import RerunMode, RerunState, get_rerun_state_machine

from recycle.megatron.flag.steps.whole_stage import read_settings, write_settings
from recycle.megatron.flag.world.collectives import Collectives
from recycle.megatron.shared.stage import MegatronStage
from recycle.runtime.net.network import Network

NOTED = ("rerun_requested", "continue_requested", "checkpoint_requested", "restart_again_requested")
"""What a rank notes while it computes an iteration: of the first results, and of others that it has compared."""

DECIDED = 2
"""What is added to each of these by a rank whose training code has decided what becomes of the results."""

NOT_TAKEN = "", False
"""While no result is made again from which the training code has gone on."""


@contextmanager
def as_in_iteration(stages: Sequence[MegatronStage], micro_batches: int) -> Iterator[None]:
    """Within the block, stages work as in an iteration; they may have been evaluating, or have come to another.

    Args:
        stages: what computes.
        micro_batches: of each pipeline, in the iteration.
    """
    present = [(each, each.micro_batches, each.model.training) for each in stages]
    for stage, *_ in present:
        stage.micro_batches = micro_batches
        stage.model.train()
    with torch.enable_grad():
        yield
    for stage, number, mode in present:
        stage.micro_batches = number
        stage.model.train(mode)


class RepeatedStep:
    """What is needed to make it again, when the training code has gone on: learning rates, and the norm of all stages.

    What the step asks of all servers is known from the first time, and so it asks nobody.

    Args:
        optimizer: Megatron's; its step is replaced by one that is remembered.
        collectives: of this server.
        version: gives that to which a step leads.
    """

    def __init__(self, optimizer: Any, collectives: Collectives, version: Callable[[], int]) -> None:
        self._optimizer = optimizer
        self._own_step = optimizer.step
        self._collectives = collectives
        self._version = version
        self._begun: int | None = None
        self._made: int | None = None
        self._calls = collectives.mark()
        self._settings: Sequence[dict[str, Any]] = ()
        optimizer.step = self._step

    def prepare(self) -> None:
        """Gradients are about to be made again: parameters have none from the step that was made or begun."""
        self._optimizer.zero_grad()

    def repeat(self, version: int) -> None:
        """From the state before a version, with the gradients of its iteration, make the step if it was made.

        If the training code has begun it, it finds gradients as it has made them ready; otherwise it is about to.
        """
        if self._begun != version:
            return
        with self._collectives.again(self._calls):
            if self._made != version:
                self._optimizer.prepare_grads()
                return
            present = read_settings(self._optimizer)
            write_settings(self._optimizer, self._settings)
            self._own_step()
            write_settings(self._optimizer, present)

    def _step(self) -> Any:
        self._calls, self._begun = self._collectives.mark(), self._version()
        self._settings = read_settings(self._optimizer)
        result = self._own_step()
        self._made = self._begun
        return result


class Reruns:
    """What one server's rerun engine knows of an iteration.

    Megatron's engine has an iteration made again whose result was rejected, and compares the two results, call by call,
    on the rank where it was. Who computes which micro-batch changes with the view, so both have to come from one view;
    and a rank that has rejected something may die before it has said so.
    """

    def __init__(self) -> None:
        self._engine: Any = get_rerun_state_machine()
        self._first = -1
        # While results are made again from which the training code has gone on: what it has found noted of them, and
        # whether it is past the iteration.
        self._taken = NOT_TAKEN
        # All ranks know what any of them has noted before the engine asks them, so it need not.
        self._engine._reduce_any = _known  # noqa: SLF001 - it listens to nothing else

    def begin(self, epoch: int) -> None:
        """The iteration is about to be computed, perhaps once more.

        Args:
            epoch: of the view. Results of another view are not compared with: the iteration is looked at anew.
        """
        engine = self._engine
        # What was noted while it was computed in vain counts for nothing.
        engine.validation_counts.clear()
        _, is_past = self._taken
        if is_past:
            return
        if engine.state is RerunState.RERUNNING_IN_PLACE and self._first == epoch:
            engine.continue_requested = engine.checkpoint_requested = False
        elif engine.state in (RerunState.INITIAL_RUN, RerunState.RERUNNING_IN_PLACE):
            engine.state, self._first = RerunState.INITIAL_RUN, epoch
            engine.rerun_requested, engine.failed_validation_call = False, None

    def share(self, network: Network) -> torch.Tensor:
        """Wait for all ranks of all live servers, and know what any of them has noted; gives that.

        Where the training code of any of them has gone on from these results, all do what it did.

        Raises:
            ViewBroken: one of them is gone.
        """
        decided, _ = self._taken
        values = (DECIDED + (name == decided) if decided else int(getattr(self._engine, name)) for name in NOTED)
        noted = torch.tensor([*values])
        network.all.maximum(noted)
        network.ranks.maximum(noted)
        self.know(noted)
        return noted

    def know(self, noted: torch.Tensor) -> None:
        """Know what any rank has noted, as a server that has heard it tells."""
        engine = self._engine
        for name, value in zip(NOTED, noted.tolist(), strict=True):
            setattr(engine, name, bool(value % DECIDED))
        if engine.state is RerunState.RERUNNING_IN_PLACE and not engine.checkpoint_requested:
            # Made again in another view, the first results may have been right.
            engine.continue_requested = True

    @contextmanager
    def again(self, iteration: int, epoch: int, repeated: bool) -> Iterator[None]:
        """Within the block, an iteration is computed from which the training code has gone on.

        Where that is within the iteration still, it is looked at anew, so that a later result can be compared.

        Args:
            iteration: its number.
            epoch: of the view.
            repeated: whether the training code has asked for the iteration once more.
        """
        engine = self._engine
        state, mode, rejected = engine.state, engine.mode, engine.rerun_requested
        within = state is not RerunState.NOT_RUNNING_YET and engine.current_iteration == iteration + 1
        engine.state = RerunState.INITIAL_RUN
        self._taken = "rerun_requested" if repeated else "continue_requested", not within
        if within:
            self.begin(epoch)
        else:
            # The training code has taken this result: it is not looked at any more.
            engine.mode, engine.rerun_requested = RerunMode.VALIDATE_RESULTS, True
        yield
        self._taken = NOT_TAKEN
        engine.state, engine.mode = state, mode
        if not within:
            engine.rerun_requested = rejected


def _known(value: bool | list[bool]) -> bool | tuple[bool, ...]:
    """What the engine asks all ranks; each knows the answer already."""
    return tuple(value) if isinstance(value, list) else value
