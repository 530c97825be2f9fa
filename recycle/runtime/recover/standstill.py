"""Standstills: work that does not come to its end though nobody is dead, and who waits for whom in it.

A link may carry nothing any more, or a server may be at another place of its program than all others. No sign of life
is missing then, and each would wait for the next one's time-out.
"""

import math
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from types import FrameType
from typing import NamedTuple

from recycle.control.board.board import Board
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.plan.plan import Plan

FACTOR, LEAST, FIRST = 20.0, 30.0, 600.0
"""An iteration stands still after so many times the median, but not before so many seconds; the first one, of which
nothing is known yet, after so many."""

DISK = 300.0
"""The least for what waits for disks, of whose first nothing is judged."""

KNOWN = 50
"""Iterations of which the median is taken."""

NAMED = 8
"""Servers that are named of those which one waits for."""

CAUSE = "standstill: "
"""What the cause of an alarm begins with where something has not come to its end."""

TRANSPORTS = "recycle.runtime.net."
"""Modules in which a thread waits for other servers. Anywhere else it computes, or is stuck."""


class ListPosition(NamedTuple):
    """Where a server is in its list.

    Attributes:
        iteration: its number.
        instruction: that is under way.
        since: when it began, on the monotonic clock in seconds.
    """

    iteration: int
    instruction: Instruction
    since: float


class JointWork(NamedTuple):
    """What all servers do together outside of their lists.

    Attributes:
        what: in words.
        since: when it began, on the monotonic clock in seconds.
        writes: whether it waits for disks.
    """

    what: str
    since: float
    writes: bool


class StandstillWatch:
    """Notices one, and says where this server is; it is told of every instruction, as one of the Hooks.

    Args:
        name: of this rank.
        server: whose list it executes.
        tell: is told where this rank is in one: whether it waits for nobody, a line, and the stack of its Python code.
        warn: is told of one that this rank has noticed.
        now: a clock, in seconds.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        tell: Callable[[bool, str, str], None],
        warn: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._server = server
        self._tell, self._warn = tell, warn
        self._now = now
        self._trains = threading.get_ident()
        self._lengths: deque[float] = deque(maxlen=KNOWN)
        self._epoch = -1
        self._plan: Plan | None = None
        self._place: ListPosition | None = None
        self._joint: JointWork | None = None
        self._joint_lengths: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KNOWN))
        # Of the iteration that is under way, or was last.
        self._began = self._ended = 0.0
        self._raised, self._is_over = False, True

    def begin(self, epoch: int, plan: Plan) -> None:
        """A view has begun, which works by a plan."""
        self._plan, self._place, self._joint, self._began = plan, None, None, 0.0
        # Last: from here on, the other thread judges what it finds.
        self._epoch, self._raised, self._is_over = epoch, False, False

    def end(self) -> None:
        """The view is over: where this server was in it may still be asked for, and nothing there takes too long."""
        self._is_over = True

    def before(self, iteration: int, instruction: Instruction) -> None:
        """See Hooks."""
        now = self._now()
        if not self._began:
            self._began = now
        elif self._place is None and not instruction.op.is_update:
            self._lengths.append(self._ended - self._began)
            self._began = now
        self._place = ListPosition(iteration, instruction, now)

    def after(self, iteration: int, instruction: Instruction, seconds: Callable[[], float]) -> None:
        """See Hooks."""
        if instruction.op is Op.STEP:
            self._ended, self._place = self._now(), None

    @contextmanager
    def during(self, what: str, *, writes: bool = False) -> Iterator[None]:
        """Within the block all servers do something together that is in no list.

        Args:
            what: in words: ``an evaluation``.
            writes: whether it waits for disks.
        """
        self._joint = joint = JointWork(what, self._now(), writes)
        yield
        self._joint_lengths[what].append(self._now() - joint.since)
        # Where it is given up, this is known until the next view begins: it may be asked for before.
        self._joint = None

    def look(self, board: Board) -> None:
        """From another thread than the one that trains: raise the alarm where something takes far too long.

        Between two iterations the training code alone may take any time.
        """
        epoch, place, joint, began = self._epoch, self._place, self._joint, self._began
        now, least, first = self._now(), LEAST, FIRST
        if joint is not None:
            what, passed, lengths = joint.what, now - joint.since, self._joint_lengths[joint.what]
            least, first = (DISK, math.inf) if joint.writes else (least, first)
        elif place is not None:
            what, passed, lengths = f"iteration {place.iteration + 1}", now - began, self._lengths
        else:
            return
        if self._is_over or self._raised or passed < patience(lengths, least, first):
            return
        self._raised = True
        usual = f", {passed / median(lengths):.0f} times as long as usual" if lengths else ""
        noticed = f"{CAUSE}{what} has taken {passed:.0f} s"
        board.failures.raise_alarm(epoch, f"{noticed}{usual}, and {self._said(place, joint)[0]}", self._name)
        # Many notice it at once, and what all of them say is printed once.
        self._warn(f"{noticed}; all servers stop, and wait for one that is stuck")

    def explain(self, cause: str) -> bool:
        """From another thread, before the one that trains is freed: in a standstill, say where this rank is.

        Returns:
            Whether it is in no iteration, where it may wait for a disk.
        """
        if cause.startswith(CAUSE):
            frame, (line, waits) = self._frame(), self._said(self._place, self._joint)
            self._tell(not waits, line, "" if frame is None else "".join(traceback.format_stack(frame)))
        return self._place is None or self._is_over

    def _said(self, place: ListPosition | None, joint: JointWork | None) -> tuple[str, bool]:
        """Where this rank is, in words, and whether it waits for others there."""
        if joint is not None:
            return f"{self._name} has been in {joint.what} for {self._now() - joint.since:.0f} s", True
        if place is None:
            return f"{self._name} is in no iteration", False
        frame = self._frame()
        frames = () if frame is None else traceback.walk_stack(frame)
        waits = any(each.f_globals.get("__name__", "").startswith(TRANSPORTS) for each, _ in frames)
        awaited = self._awaited(place.instruction) if waits else []
        more = len(awaited) - NAMED
        line = f"{self._name} has been at {place.instruction} for {self._now() - place.since:.0f} s"
        named = " and ".join(map(str, awaited[:NAMED])) + (f" and {more} more" if more > 0 else "")
        return (f"{line} and waits for {named}" if awaited else line), bool(awaited)

    def _frame(self) -> FrameType | None:
        """Where the thread that trains is."""
        # Python has no other way to another thread's stack.
        return sys._current_frames().get(self._trains)  # noqa: SLF001

    def _awaited(self, instruction: Instruction) -> list[Server]:
        """For whom it may wait."""
        plan, op = self._plan, instruction.op
        if plan is None:
            return []
        if op is Op.REDUCE:
            peers = (each for each in plan.programs if each != self._server)
            return [each for each in peers if instruction in plan.programs[each]]
        if op.is_send:
            return [instruction.peer] if instruction.peer is not None else []
        received = Op.RECV_F if op is Op.F else Op.RECV_B
        what = received, instruction.stage, instruction.home, instruction.micro_batch
        return [
            each.peer
            for each in plan.programs[self._server]
            if (each.op, each.stage, each.home, each.micro_batch) == what and each.peer is not None
        ]


def patience(lengths: Sequence[float], least: float = LEAST, first: float = FIRST) -> float:
    """Seconds after which something stands still.

    Args:
        lengths: how long it took before, in seconds.
        least: seconds that it has in any case, once that is known.
        first: seconds that it has before.
    """
    return max(least, FACTOR * median(lengths)) if lengths else first
