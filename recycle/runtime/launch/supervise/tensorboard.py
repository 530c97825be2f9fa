"""TensorBoard event files of a run."""

import io
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar

from recycle.record.best_effort import BestEffort, GrowingFile
from recycle.record.totals import StepTotal


class TensorBoard:
    """Writes loss, held-out loss and speed by step.

    It does without torch's ``SummaryWriter``, whose thread ends for good when a file cannot be written.

    Args:
        folder: where the event files go.
        tokens: in an iteration.
        warn: told where figures are left out because they cannot be written.
    """

    def __init__(self, folder: Path, tokens: int, warn: Callable[[str], None]) -> None:
        self._tokens = tokens
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.0"
        head = _record(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._file = GrowingFile(folder / name, head, BestEffort(str(folder), warn))

    def add(self, total: StepTotal) -> None:
        """Write a step's figures; they are on their way to disk when this returns."""
        figures = {"loss/held-out": total.loss}
        if total.seconds is not None:
            figures = {"loss/training": total.loss, "tokens per second": self._tokens / total.seconds}
        events = (
            Event(wall_time=time.time(), step=total.step, summary=scalar(name, figure))  # type: ignore[no-untyped-call]
            for name, figure in figures.items()
        )
        self._file.add(b"".join(map(_record, events)))

    def close(self) -> None:
        """Close the event file."""
        self._file.close()


def _record(event: Event) -> bytes:
    """An event as it is in a file."""
    content = io.BytesIO()
    RecordWriter(content).write(event.SerializeToString())
    return content.getvalue()
