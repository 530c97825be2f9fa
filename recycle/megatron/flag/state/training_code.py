"""What Megatron's training code knows beside the model and the optimizer's state, for a rank that comes back.

It is what a checkpoint holds as well, and what the training code adds up between two lines that it prints.
"""

import random
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import msgspec
import numpy
import torch
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

from recycle.megatron.flag.data.script_data import Bookmark, ScriptData
from recycle.megatron.flag.steps.auxiliary_losses import reported, take_over
from recycle.runtime.device import own_device
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.keep.layout import below

COUNTERS = ("consumed_train_samples", "consumed_valid_samples", "skipped_train_samples")
"""Megatron's arguments that change while training goes on."""

PROGRESS, TOTAL, REPORTED, RANDOM, TRACKER, SCALE = "progress", "total/", "reported/", "random/", "tracker/", "scale"
"""How the parts are called under which the state travels."""


class CodeProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of it that is no tensor.

    Attributes:
        iteration: the number of the one that begins.
        counters: Megatron's arguments that change, by name.
        operations: how many floating-point operations all iterations together took.
        began: the first iteration that was made, on all servers that were there then.
        scheduler: of learning rate and weight decay.
        bookmarks: how far each of the script's iterators was read.
        counts: of iterations since the last line that was printed.
        scales: of losses, of each optimizer that scales them: how long they have been what they are.
        python_random: the state of Python's generator.
        numpy_random: that of numpy's.
    """

    iteration: int
    counters: dict[str, int]
    operations: float | int
    began: int
    scheduler: dict[str, bool | int | float | str | None]
    bookmarks: list[Bookmark]
    counts: dict[str, int]
    scales: list[dict[str, int]]
    python_random: tuple[int, tuple[int, ...], float | None]
    numpy_random: tuple[str, list[int], int, int, float]


class TrainingCode:
    """The training code of one server.

    Args:
        arguments: Megatron's.
        data: what its iterators give.
        operations: Megatron's count of floating-point operations for so many samples.

    Attributes:
        optimizer: Megatron's, once it is set up.
        scheduler: its learning rates, likewise.
    """

    def __init__(self, arguments: Any, data: ScriptData, operations: Callable[[Any, int], float | int]) -> None:
        self.optimizer: Any = None
        self.scheduler: Any = None
        self._arguments = arguments
        self._data = data
        self._operations = operations
        self._trained = 0
        self._began: int | None = None
        self._totals: dict[str, Any] = {}
        self._brought: dict[str, Any] | None = None
        self._makes_first = True

    @property
    def began(self) -> int:
        """The first iteration that was made, on all servers that were there then."""
        assert self._began is not None, "no iteration has begun"
        return self._began

    def begin(self) -> None:
        """Training begins, from nothing or a checkpoint."""
        self._trained = self._samples

    def begin_iteration(self, iteration: int) -> None:
        """The training code begins an iteration."""
        self._began = iteration if self._began is None else self._began

    def state(self, _: int) -> dict[str, torch.Tensor]:
        """See TakenOver: what there is to know before the iteration that begins, by name."""
        arguments, scales = self._arguments, [each.state_dict() for each in self._scalers]
        done = arguments.num_floating_point_operations_so_far
        drawn: Any = numpy.random.get_state()
        kind, words, *rest = drawn
        iteration = int(arguments.curr_iteration)
        progress = CodeProgress(
            iteration,
            {name: int(getattr(arguments, name)) for name in COUNTERS},
            done + self._operations(arguments, self._samples - self._trained),
            self.began,
            self.scheduler.state_dict(),
            self._data.bookmarks(iteration),
            {name: count for name, count in self._totals.items() if isinstance(count, int)},
            [{name: value for name, value in each.items() if isinstance(value, int)} for each in scales],
            random.getstate(),
            (kind, words.tolist(), *rest),
        )
        tensors = {
            f"{RANDOM}torch": torch.get_rng_state(),
            f"{RANDOM}cuda": torch.cuda.get_rng_state(),
            **{f"{TRACKER}{name}": each for name, each in get_cuda_rng_tracker().get_states().items()},
            **{f"{TOTAL}{name}": each for name, each in self._totals.items() if isinstance(each, torch.Tensor)},
            **{f"{REPORTED}{name}": each for name, each in reported().items()},
            **{f"{SCALE}{number}": each[SCALE] for number, each in enumerate(scales) if each},
        }
        content = torch.frombuffer(bytearray(msgspec.json.encode(progress)), dtype=torch.uint8)
        return {PROGRESS: content, **tensors}

    def adopt(self, _: int, state: Mapping[str, torch.Tensor]) -> None:
        """See TakenOver: go on before an iteration with what another server knows.

        Raises:
            ConnectionLost: that is something else.
        """
        try:
            progress = msgspec.json.decode(state[PROGRESS].numpy().tobytes(), type=CodeProgress)
        except (KeyError, msgspec.DecodeError) as error:
            raise ConnectionLost(f"a peer does not say how far its training is: {error}") from error
        arguments = self._arguments
        # The version is no number of the training code's: it leaves out iterations, and makes some twice.
        arguments.iteration = progress.iteration
        self._began = progress.began
        # A run's first iteration is not this server's first. Results are looked at from the second one on.
        self._makes_first = progress.iteration == progress.began
        get_rerun_state_machine().first_iteration_complete = not self._makes_first
        for name in COUNTERS:
            setattr(arguments, name, progress.counters[name])
        arguments.num_floating_point_operations_so_far = progress.operations
        scheduler = self.scheduler
        scheduler.num_steps = 0
        # All servers have the same options; those of the start that left this in memory may have had another length.
        scheduler.override_opt_param_scheduler = not scheduler.use_checkpoint_opt_param_scheduler
        scheduler.load_state_dict(progress.scheduler)
        scheduler.step(0)
        self._data.open_at(progress.bookmarks)
        totals = {name: each.to(own_device()) for name, each in below(TOTAL, state).items()}
        self._brought = {**progress.counts, **totals}
        take_over(below(REPORTED, state))
        for number, scaler in enumerate(self._scalers):
            if (found := state.get(f"{SCALE}{number}")) is not None:
                scaler.load_state_dict({**progress.scales[number], SCALE: found})
        random.setstate(progress.python_random)
        kind, words, *rest = progress.numpy_random
        drawn: Any = (kind, numpy.array(words, dtype=numpy.uint32), *rest)
        numpy.random.set_state(drawn)
        # torch reads a generator's state from where its memory begins, and what came over lies in the middle of some.
        torch.set_rng_state(state[f"{RANDOM}torch"].clone())
        torch.cuda.set_rng_state(state[f"{RANDOM}cuda"].clone())
        get_cuda_rng_tracker().set_states({name: each.clone() for name, each in below(TRACKER, state).items()})

    def log(self, training_log: Callable[..., Any]) -> Callable[..., Any]:
        """Megatron's ``training_log``, whose sums since the last line that it printed come back with a server."""

        @wraps(training_log)
        def log(losses: Any, totals: dict[str, Any], *others: Any, **keywords: Any) -> Any:
            if self._brought is not None:
                totals.update(self._brought)
                # After a start the first iteration has a line of its own, and counts again in the next one.
                keywords["is_first_iteration"] = self._makes_first
                self._brought = None
            result = training_log(losses, totals, *others, **keywords)
            self._totals = totals
            return result

        return log

    @property
    def _samples(self) -> int:
        """That were trained on."""
        return int(self._arguments.consumed_train_samples - self._arguments.skipped_train_samples)

    @property
    def _scalers(self) -> list[Any]:
        """What scales losses, in each of the optimizers that Megatron's consists of, where they do."""
        chained = getattr(self.optimizer, "chained_optimizers", [self.optimizer])
        scalers = [getattr(each, "grad_scaler", None) for each in chained]
        return [each for each in scalers if each is not None]
