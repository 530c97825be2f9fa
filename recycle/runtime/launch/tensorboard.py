"""TensorBoard event files of a run."""

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from recycle.record.totals import StepTotal


class TensorBoard:
    """Writes loss, held-out loss and speed by step.

    Args:
        folder: where the event files go.
        tokens: in an iteration.
    """

    def __init__(self, folder: Path, tokens: int) -> None:
        self._tokens = tokens
        self._writer = SummaryWriter(str(folder))

    def add(self, total: StepTotal) -> None:
        """Write a step's figures; they are on their way to disk when this returns."""
        if total.seconds is None:
            self._writer.add_scalar("loss/held-out", total.loss, total.step)
        else:
            self._writer.add_scalar("loss/training", total.loss, total.step)
            self._writer.add_scalar("tokens per second", self._tokens / total.seconds, total.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
