"""The model that is placed: what each layer costs and holds, and the servers' memory. Pure data."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import msgspec

from recycle.errors import JobError
from recycle.job import Job, Stage

Run: TypeAlias = tuple[int, int]
"""Consecutive layers: the first, and the one behind the last."""


class Layer(msgspec.Struct, frozen=True):
    """What one layer costs and holds; the fields are those of ``Stage``, for one layer.

    Attributes:
        forward: time of F for one micro-batch.
        input_gradient: time of I.
        weight_gradient: time of W.
        optimizer: time of the optimizer step.
        reduction: time of the gradients' reduction before it.
        held: memory that one micro-batch holds from its F on.
        released_at_input_gradient: the part of it that is free when I ends.
        taken_at_input_gradient: memory that I takes on top, and W releases.
        state: memory for all else.
    """

    forward: int = 1
    input_gradient: int = 1
    weight_gradient: int = 1
    optimizer: int = 0
    reduction: int = 0
    held: int = 1
    released_at_input_gradient: int = 0
    taken_at_input_gradient: int = 0
    state: int = 0


class Model(msgspec.Struct, frozen=True, dict=True):
    """Layers in their order, and the servers that they are placed on.

    Attributes:
        layers: of the model.
        memory: of each server, for activations and state.
        latency: time between the ends of two stages of a pipeline.
    """

    layers: tuple[Layer, ...]
    memory: int
    latency: int = 0

    def __post_init__(self) -> None:
        if not self.layers:
            raise JobError("layers: a model has one at least, and this one has none")

    def work(self, run: Run) -> int:
        """Time of all compute of some layers for one micro-batch."""
        return self._work[run[1]] - self._work[run[0]]

    def update(self, run: Run) -> int:
        """Time from the last gradient of some layers to the end of their optimizer step."""
        return self._update[run[1]] - self._update[run[0]]

    def needs(self, run: Run, micro_batches: int) -> int:
        """Memory for the state of some layers and the activations of so many micro-batches."""
        first, last = run
        held = micro_batches * (self._held[last] - self._held[first])
        return self._state[last] - self._state[first] + held + self._taken[last] - self._taken[first]

    def stage(self, run: Run) -> Stage:
        """Some layers as one chunk, with what is left of a server's memory beside their state."""
        layers = self.layers[run[0] : run[1]]
        names = set(Stage.__struct_fields__) - {"limit"}
        fields = {name: sum(getattr(layer, name) for layer in layers) for name in names}
        return Stage(**fields, limit=self.memory - fields["state"])

    def pipeline(self, runs: Sequence[Run], micro_batches: int) -> Job:
        """One pipeline whose servers hold some layers each, as a job.

        Raises:
            JobError: a server has not the memory for a single micro-batch.
        """
        stages = tuple(map(self.stage, runs))
        return Job(1, micro_batches, stages, (self.latency,) * (len(stages) - 1))

    @cached_property
    def _work(self) -> list[int]:
        return self._sums(lambda layer: layer.forward + layer.input_gradient + layer.weight_gradient)

    @cached_property
    def _update(self) -> list[int]:
        return self._sums(lambda layer: layer.reduction + layer.optimizer)

    @cached_property
    def _held(self) -> list[int]:
        return self._sums(lambda layer: layer.held)

    @cached_property
    def _taken(self) -> list[int]:
        return self._sums(lambda layer: layer.taken_at_input_gradient)

    @cached_property
    def _state(self) -> list[int]:
        return self._sums(lambda layer: layer.state)

    def _sums(self, amount: Callable[[Layer], int]) -> list[int]:
        return list(accumulate(map(amount, self.layers), initial=0))


MOST_LAYERS, MOST_OF_A_STAGE = 1000, 64
"""Layers that every model may have, and those of each stage, where there are more."""


def most_layers(stages: int) -> int:
    """How many layers a model of so many stages may have for it to be said in seconds where they should be."""
    return max(MOST_LAYERS, MOST_OF_A_STAGE * stages)


def layers_of(job: Job, layers: int) -> Model:
    """A job's model, where only its stages are known: each stage's share of the layers takes equal shares of its costs.

    Times and memory are multiplied by the number of layers, so that shares stay whole.

    Args:
        job: whose stages are divided.
        layers: of the whole model, at least one per stage.

    Raises:
        JobError: there are fewer layers than stages, or so many that to place them takes too long.
    """
    depth = len(job.stages)
    if layers > (most := most_layers(depth)):
        raise JobError(f"layers is {layers}: where they may move, {depth} stages have {most} at most; give less")
    if layers < depth:
        raise JobError(f"layers is {layers}: {depth} stages need at least {depth} layers")
    names = Layer.__struct_fields__
    found: list[Layer] = []
    for number, stage in enumerate(job.stages):
        count = (number + 1) * layers // depth - number * layers // depth
        fields = {name: layers * getattr(stage, name) // count for name in names}
        found += [Layer(**fields)] * count
    memory = max(stage.limit + stage.state for stage in job.stages) * layers
    return Model(tuple(found), memory, max(job.latency, default=0) * layers)
