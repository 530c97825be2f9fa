"""The last step of Megatron's optimizer, made again where a server went back to the state before it."""

from collections.abc import Callable, Sequence
from typing import Any

from recycle.megatron.flag.steps.ddp_parameters import SETTINGS
from recycle.megatron.flag.world.collectives import Collectives


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
            present = self._read_settings()
            self._write_settings(self._settings)
            self._own_step()
            self._write_settings(present)

    def _step(self) -> Any:
        self._calls, self._settings, self._begun = self._collectives.mark(), self._read_settings(), self._version()
        result = self._own_step()
        self._made = self._begun
        return result

    def _read_settings(self) -> Sequence[dict[str, Any]]:
        groups = self._optimizer.param_groups
        return [{name: group[name] for name in SETTINGS if name in group} for group in groups]

    def _write_settings(self, settings: Sequence[dict[str, Any]]) -> None:
        for group, values in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(values)
