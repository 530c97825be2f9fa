"""The figures of a whole step, put together from the events of all servers."""

from collections import defaultdict
from collections.abc import Callable

import msgspec

from recycle.plan.recording import EvaluationLine, IterationLine
from recycle.runtime.events import Event


class StepTotal(msgspec.Struct, frozen=True):
    """What all servers together say of a step.

    Attributes:
        step: the number of iterations made before it.
        loss: mean over all micro-batches.
        seconds: how long the slowest server took; None for a look at held-out data.
    """

    step: int
    loss: float
    seconds: float | None

    @property
    def held_out(self) -> bool:
        """Whether the loss is that of held-out data."""
        return self.seconds is None


class Totals:
    """Collects events, and passes a total on when the last server has told of its step.

    Args:
        servers: how many live servers there are.
        micro_batches: of all pipelines in an iteration.
        receivers: what is called with every total.
    """

    def __init__(self, servers: int, micro_batches: int, *receivers: Callable[[StepTotal], None]) -> None:
        self._servers = servers
        self._micro_batches = micro_batches
        self._receivers = receivers
        self._iterated: dict[int, list[IterationLine]] = defaultdict(list)
        self._evaluated: dict[int, list[float]] = defaultdict(list)

    def add(self, event: Event) -> None:
        """Take in an event of one server."""
        if isinstance(event, IterationLine):
            self._iterated[event.step].append(event)
            if len(self._iterated[event.step]) == self._servers:
                events = self._iterated.pop(event.step)
                losses = [loss for each in events for loss in each.losses]
                self._pass_on(event.step, losses, max(each.seconds for each in events))
        elif isinstance(event, EvaluationLine):
            self._evaluated[event.step].extend(event.losses)
            if len(self._evaluated[event.step]) == self._micro_batches:
                self._pass_on(event.step, self._evaluated.pop(event.step), None)

    def _pass_on(self, step: int, losses: list[float], seconds: float | None) -> None:
        # Which server tells first is chance, and a sum of floats depends on its order.
        total = StepTotal(step, sum(sorted(losses)) / len(losses), seconds)
        for receive in self._receivers:
            receive(total)
