"""How a script that is started again comes back into a training that has gone on meanwhile.

It sets up model, optimizer and data sets like any other. Where Megatron would begin to train, it is let in between two
iterations of the others, and goes on from there. Where all servers were dead, all come so, to what keepers have.
"""

from ast import literal_eval
from collections.abc import Sequence
from functools import wraps
from itertools import count
from typing import Any

from megatron.core import optimizer
from megatron.core.num_microbatches_calculator import update_num_microbatches
from torch.utils.data import DataLoader

from recycle.megatron.flag.data.script_data import LateLoader
from recycle.megatron.flag.run.notes import Notes
from recycle.megatron.flag.run.schedule import PlanSchedule, ScheduleCall
from recycle.megatron.flag.state.training_code import TrainingCode
from recycle.megatron.shared.patching import replace

FLAGS = ("do_train", "do_valid", "do_test")
"""Megatron's arguments that the first rank sets for all, by its data sets; a middle stage has none."""

FROM_FILES = ("load", "pretrained_checkpoint", "moe_use_upcycling")
"""Megatron's arguments to begin with a checkpoint, which is older than what the others have."""


class RestartedRank:
    """What is replaced for it, on the server that comes back and on all that it may come to.

    Args:
        arguments: Megatron's.
        code: what the training code knows.
        notes: what the first rank tells all others.
        alone: whether this server sets up alone, long after the others.
        arrives: whether this server comes back, or all do.

    Attributes:
        code: as above.
    """

    def __init__(self, arguments: Any, code: TrainingCode, notes: Notes, *, alone: bool, arrives: bool) -> None:
        self.code = code
        self._arguments = arguments
        self._notes = notes
        self._tell = notes.tell if arguments.rank == 0 else notes.note
        self._alone = alone
        self._arrives = arrives

    def install(self, training: Any, schedule: PlanSchedule) -> None:
        """Replace what has to be.

        Args:
            training: Megatron's module of this name.
            schedule: is made ready before training begins, where one comes back.
        """
        self._keep_set_up(training)
        self._keep_parameter_groups()
        replace(training, "training_log", self.code.log(training.training_log))
        if self._arrives:
            self._arrive_first(training, schedule)

    def take(self, built: Sequence[Any]) -> Sequence[Any]:
        """Loaders were built: on a server that comes back they are not read from before it knows where.

        The first rank tells all others what comes: whether to train, validate and test. Another one that is alone has
        heard itself in its place, so it reads that in the store.
        """
        arguments = self._arguments
        if self._alone and arguments.rank:
            told = self._notes.read("flags").decode().split()
            for name in FLAGS:
                setattr(arguments, name, name in told)
        else:
            self._tell("flags", " ".join(each for each in FLAGS if getattr(arguments, each)).encode())
        return tuple(_late(each) for each in built) if self._arrives else built

    def _keep_set_up(self, training: Any) -> None:
        set_up, arguments, code = training.setup_model_and_optimizer, self._arguments, self.code
        given = {name: getattr(arguments, name, None) for name in FROM_FILES}
        vars(arguments).update(dict.fromkeys(given if self._arrives else ()))

        @wraps(set_up)
        def setup_model_and_optimizer(*positional: Any, **keywords: Any) -> Any:
            model, code.optimizer, code.scheduler = set_up(*positional, **keywords)
            vars(arguments).update(given)
            return model, code.optimizer, code.scheduler

        replace(training, "setup_model_and_optimizer", setup_model_and_optimizer)

    def _keep_parameter_groups(self) -> None:
        """Have a server that comes back make the groups that the others have, which ask all stages for theirs."""
        numbers, own_groups = count(), optimizer._get_param_groups  # noqa: SLF001 - it has no other name

        @wraps(own_groups)
        def groups(*positional: Any, **keywords: Any) -> list[dict[str, Any]]:
            made, name = own_groups(*positional, **keywords), f"parameter groups {next(numbers)}"
            settings = [repr({key: each for key, each in group.items() if key != "params"}) for group in made]
            if not self._alone:
                self._tell(name, "\n".join(settings).encode())
                return list(made)
            own = {
                each: [group for text, group in zip(settings, made, strict=True) if text == each] for each in settings
            }
            told = self._notes.read(name).decode().splitlines()
            return [own[each].pop(0) if own.get(each) else {"params": [], **literal_eval(each)} for each in told]

        # Some releases make Muon's elsewhere.
        for module in (optimizer, getattr(optimizer, "muon", None)):
            if hasattr(module, "_get_param_groups"):
                replace(module, "_get_param_groups", groups)

    def _arrive_first(self, training: Any, schedule: PlanSchedule) -> None:
        own_train, arguments = training.train, self._arguments

        @wraps(own_train)
        def train(
            forward_step_func: Any, model: Any, optimizer: Any, scheduler: Any, data: Any, *others: Any, **keywords: Any
        ) -> Any:
            batch = schedule.micro_batches, arguments.seq_length, arguments.micro_batch_size
            schedule.begin(ScheduleCall(forward_step_func, data, model, *batch))
            # Megatron looks how large the batch is now, and where it finds it grown, all make a checkpoint.
            update_num_microbatches(arguments.consumed_train_samples, consistency_check=False)
            return own_train(forward_step_func, model, optimizer, scheduler, data, *others, **keywords)

        replace(training, "train", train)


def _late(loader: Any) -> Any:
    if isinstance(loader, list):
        return [_late(each) for each in loader]
    return LateLoader(loader) if isinstance(loader, DataLoader) else loader
