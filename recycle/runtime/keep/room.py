"""Room for a version that comes part by part, every one of which may turn out to be bad."""

from collections.abc import Iterator, Mapping

import torch

from recycle.runtime.errors import ConnectionLost
from recycle.runtime.join.handover import make_room
from recycle.runtime.keep.layout import bytes_of, count_bytes, range_of
from recycle.state.errors import BadCopy
from recycle.state.ladder import Copy


class Room:
    """Memory for one version, laid out as the first part that is known to be good says.

    Args:
        step: which version.

    Attributes:
        state: it, by name.
    """

    def __init__(self, step: int) -> None:
        self.state: Mapping[str, torch.Tensor] = {}
        self._step = step
        self._head = b""
        self._confirmed = False

    def memory(self, copy: Copy, head: bytes) -> Iterator[memoryview]:
        """Where a part goes.

        Args:
            copy: of the part.
            head: which came with it.

        Raises:
            BadCopy: the two cannot belong to this version.
        """
        if not self._confirmed:
            self._lay_out(copy, head)
        wanted = range_of(copy.part, count_bytes(self.state))
        if head != self._head or len(wanted) != copy.size:
            raise BadCopy(f"{copy.part} at {copy.keeper} is laid out in another way")
        return bytes_of(self.state, wanted)

    def confirm(self) -> None:
        """What came last is as it was put, and with it how the version is laid out."""
        self._confirmed = True

    def _lay_out(self, copy: Copy, head: bytes) -> None:
        try:
            step, self.state = make_room(head)
        except ConnectionLost as error:
            raise BadCopy(f"{copy.part} at {copy.keeper}: {error}") from error
        if step != self._step:
            raise BadCopy(f"{copy.part} at {copy.keeper} says that it is of version {step}")
        self._head = head
