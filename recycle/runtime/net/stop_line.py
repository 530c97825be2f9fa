"""The stop line: where all ranks of a server stop in a list that ends early.

While a list is executed, the ranks of a server call each other in groups that are their own and that no view ends. So
all of them have to start the same calls. They agree twice: before a list, which begins only when all have come to it;
and when it ends early, at the furthest instruction that any of them had begun when it heard the alarm. All go on to
there with whatever their transfers brought, and what they compute is dropped.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from torch.distributed import Work

from recycle.control.membership.errors import StoreLost
from recycle.runtime.errors import Interrupted, ViewBroken

_LONGEST = 1 << 32
NOWHERE = -1
"""The place of a rank that has begun no instruction yet."""


class OwnGroup(NamedTuple):
    """Some ranks of a server.

    Attributes:
        numbers: theirs, in the order of the group.
        settings: torch's options of its communicator on devices; None for the usual ones. Of groups of the same ranks,
            those of the first that is called count.
    """

    numbers: tuple[int, ...]
    settings: Any = None


OwnCall = Callable[[OwnGroup, Callable[[], None], str, Sequence[Any], Mapping[str, Any]], Work]
"""Starts a call among some ranks of a server in a group that no view ends; see ``OwnRanks.start``."""


class Line:
    """The stop line of one rank in one view; this one is of a rank that stops alone.

    Attributes:
        is_open: whether a list is executed just now whose ranks stop together.
    """

    is_open = False

    def list(self) -> AbstractContextManager[None]:
        """Within the block, a list is executed.

        Raises:
            ViewBroken: the view is over; where the list has begun, all ranks have come as far.
        """
        return nullcontext()

    def enter(self, row: int) -> None:
        """The next instruction of the list is about to begin.

        Raises:
            ViewBroken: it lies behind the line.
        """

    def bear(self, error: ViewBroken) -> None:
        """A transfer has failed; the instruction goes on without it if the ranks stop together.

        Raises:
            ViewBroken: it, if they do not.
        """
        raise error

    def start(self, group: OwnGroup, name: str, *arguments: Any, **keywords: Any) -> Work | None:
        """Start a call among some ranks of the server, if a list is executed whose ranks stop together.

        Args:
            group: of these ranks.
            name: of the call, as torch calls it of a process group.
            arguments: of the call.
            keywords: of the call.

        Returns:
            What is waited for; None where such calls end with the view.

        Raises:
            ViewBroken: one of the ranks is gone, and so is this server.
        """
        return None

    def close(self) -> int | None:
        """From the thread that has heard the alarm: how far this rank is, which begins nothing new until all have said.

        None if the ranks do not stop together.
        """
        return None

    def stop_at(self, place: int) -> None:
        """From that thread: all ranks have said how far they are, and this is the furthest place."""

    def give_up(self) -> None:
        """From that thread: it will never be known."""


NO_LINE = Line()


class StopLine(Line):
    """A Line of one of several ranks.

    Args:
        gate: waits until all ranks of the server have come here; it ends with the view.
        own: starts what the ranks call meanwhile.
        alarm: says that the view is over, unless that was heard already.
        patience: seconds for which is waited until all ranks have heard that.
    """

    def __init__(
        self, gate: Callable[[], None], own: OwnCall, alarm: Callable[[ViewBroken], None], patience: float
    ) -> None:
        self._gate = gate
        self._own = own
        self._alarm = alarm
        self._patience = patience
        self._changed = threading.Condition()
        self._list = -1
        self._reached = NOWHERE
        self._closed = False
        self._stop: int | None = None
        self._given_up = False
        self._error: ViewBroken | None = None

    @contextmanager
    def list(self) -> Iterator[None]:
        """See Line."""
        self._list += 1
        try:
            self._gate()
        except ViewBroken as error:
            # It may have been open for others, which are in the list then and wait for this rank.
            self._break(error)
            if self._await_stop() < self._place(0):
                raise
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False
        if self._error is not None:
            raise self._error

    def enter(self, row: int) -> None:
        """See Line."""
        with self._changed:
            if not self._closed and self._error is None:
                self._reached = self._place(row)
                return
        if self._place(row) > self._await_stop():
            raise self._failure

    def bear(self, error: ViewBroken) -> None:
        """See Line."""
        if not self.is_open:
            raise error
        self._break(error)

    def start(self, group: OwnGroup, name: str, *arguments: Any, **keywords: Any) -> Work | None:
        """See Line."""
        return self._own(group, self._check, name, arguments, keywords) if self.is_open else None

    def close(self) -> int:
        """See Line."""
        with self._changed:
            self._closed = True
            return self._reached

    def stop_at(self, place: int) -> None:
        """See Line."""
        with self._changed:
            self._stop = place
            self._changed.notify_all()

    def give_up(self) -> None:
        """See Line."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def _check(self) -> None:
        if self._given_up:
            raise self._failure

    def _place(self, row: int) -> int:
        return self._list * _LONGEST + row

    def _break(self, error: ViewBroken) -> None:
        if self._error is not None:
            return
        self._error = error
        try:
            # Before this rank waits for the others, which have to hear of it.
            self._alarm(error)
        except StoreLost:
            self.give_up()

    def _await_stop(self) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._stop is not None or self._given_up, self._patience)
            if self._stop is not None:
                return self._stop
        self.give_up()
        raise self._failure

    @property
    def _failure(self) -> ViewBroken:
        return self._error or Interrupted("the other ranks of this server gave no answer in time")
