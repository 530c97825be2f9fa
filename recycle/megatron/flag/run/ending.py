"""Checkpoints that Megatron has not planned: where the run was told to end, and where the store is lost."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from recycle.megatron.shared.patching import replace
from recycle.runtime.execute.notices import Notices
from recycle.runtime.launch.process.signals import be_told_to_leave
from recycle.runtime.net.network import Network
from recycle.saying import say
from recycle.wording import plural


class Ending:
    """When such a checkpoint is due, and whether the run ends with it; all servers know the same.

    Args:
        arguments: Megatron's.

    Attributes:
        ends: whether the run ends with it.
        is_saved: whether the last checkpoint that was due has been written.
    """

    def __init__(self, arguments: Any) -> None:
        self.ends = False
        self._arguments = arguments
        self._due = 0  # after so many iterations
        self._was_lost = False
        self.is_saved = True

    def note_save(self, is_written: bool) -> None:
        """After a save: whether all have written it."""
        self.is_saved = is_written

    def listen(self, leave: Callable[[str], None]) -> None:
        """Have SIGTERM tell this process to leave, unless Megatron was asked to make a checkpoint then.

        Args:
            leave: called with the signal's name, from its handler.
        """
        # Only some releases can also end a process in good order, which leaving is.
        is_ended = getattr(self._arguments, "exit_signal_handler_for_training", False)
        is_taken = self._arguments.exit_signal_handler and not is_ended
        be_told_to_leave(leave, self._arguments.exit_signal if is_taken else None)

    def note(self, step: int, heard: Notices, is_end: bool) -> None:
        """Before an iteration: what all servers have heard.

        Args:
            step: the iteration.
            heard: it.
            is_end: whether servers leave without whom the run cannot go on.
        """
        lost = heard.unprotected > 0
        if is_end or (lost and not self._was_lost):
            self._due, self.ends = step + 1, is_end
        self._was_lost = lost

    def connect(self, network: Network) -> None:
        """In a new view, all know what any of them has noted: some may have missed it when the last one broke.

        Raises:
            ViewBroken: somebody is gone.
        """
        noted = torch.tensor([self._due, int(self.ends)])
        network.all.maximum(noted)
        network.ranks.maximum(noted)
        self._due, self.ends = int(noted[0]), bool(noted[1])

    def install(self, training: Any) -> None:
        """Have Megatron make the checkpoint, and end.

        Args:
            training: Megatron's module of this name.
        """
        own = training.checkpoint_and_decide_exit

        @wraps(own)
        def checkpoint_and_decide_exit(
            model: Any, optimizer: Any, scheduler: Any, iteration: int, operations: Any, context: Any, data: Any
        ) -> bool:
            exits = bool(own(model, optimizer, scheduler, iteration, operations, context, data))
            if iteration != self._due:
                return exits
            interval = self._arguments.save_interval
            is_planned = bool(interval) and iteration % interval == 0
            if self._arguments.save and not exits and not is_planned:
                training.save_checkpoint_and_time(
                    iteration, model, optimizer, scheduler, operations, context, train_data_iterator=data
                )
            if self.ends and torch.distributed.get_rank() == 0:
                saved = "with a checkpoint" if self._arguments.save else "without a checkpoint, as --save is not given"
                saved = saved if self.is_saved else "and their checkpoint could not be written"
                say(f"told to end: training has ended after {plural(iteration, 'iteration')}, {saved}")
            return exits or self.ends

        replace(training, "checkpoint_and_decide_exit", checkpoint_and_decide_exit)
