"""The history of a run: which servers died, which views followed, and how long each change of views took."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from recycle.record.costs import Cost, IterationTimes
from recycle.record.recording import (
    AbandonedLine,
    DeathLine,
    InstantLine,
    IterationLine,
    Line,
    RecoveryLine,
    RunLine,
    ViewLine,
)
from recycle.wording import microseconds

TOLD = frozenset({"fault", "warning", "unprotected", "protected", "end", "norm", "memory", "move"})
"""The kinds of instants that a person should be told."""


class ViewRecovery(msgspec.Struct, frozen=True):
    """What a change of views took as a whole; lengths in the run's time unit.

    It begins with the last sign of life of the server that died last or, if none died, when the first server knew of
    the change. But it does not begin before the last finished iteration has ended on all servers: that was work. What
    it took on one server is a ``RecoveryLine``.

    Attributes:
        epoch: of the new view.
        step: the iteration that it begins with.
        deaths: how many servers died.
        began: the time that it is counted from.
        detect: until all servers knew.
        agree: from then until all had the new view.
        rebuild: from then until all had their connections.
        restore: from then until all held the state that the iteration starts from.
        start: from then until the first of them began an instruction.
        redo: from then until all had finished the iteration.
        lost: how long was worked before at what is made again: at finished iterations, and the one in flight.
    """

    epoch: int
    step: int
    deaths: int
    began: float
    detect: float
    agree: float
    rebuild: float
    restore: float
    start: float
    redo: float
    lost: float = 0.0

    @property
    def pause(self) -> float:
        """Without work: from its beginning to the first instruction in the new view."""
        return self.detect + self.agree + self.rebuild + self.restore + self.start


class Change(msgspec.Struct, frozen=True):
    """A view that followed another one.

    Attributes:
        view: the new one.
        before: the throughput of the plan before it, against fault-free 1F1B.
        start: the throughput of the run's first plan, likewise.
        deaths: of the servers of the view before that died.
        joined: the servers that came, each with the number of its life.
        again: how many iterations are made again.
        recovery: what it took; None until all servers that went through it have reported.
    """

    view: ViewLine
    before: float
    start: float
    deaths: tuple[DeathLine, ...]
    joined: tuple[tuple[str, int], ...]
    again: int
    recovery: ViewRecovery | None


RunEvent = DeathLine | Change | ViewRecovery | InstantLine


class History:
    """Puts together the lines of all servers, which come in any order, each perhaps several times.

    Attributes:
        time_unit: what one unit of the lines' times is: microseconds, unless a recording's head says otherwise.
    """

    def __init__(self) -> None:
        self.time_unit = "us"
        # By server and view: lives are counted anew where a run goes on, and views are numbered on.
        self._deaths: dict[tuple[str, int], DeathLine] = {}
        self._views: dict[int, ViewLine] = {}
        self._recoveries: dict[int, dict[str, RecoveryLine]] = {}
        self._times = IterationTimes()
        self._said_by: dict[str, set[str | None]] = {}
        self._absent: set[str] = set()
        self._instants: list[InstantLine] = []

    def add(self, line: Line) -> RunEvent | None:
        """Take in a line of a recording.

        Returns:
            What a person should be told, if the line says something new.
        """
        match line:
            case RunLine():
                self.time_unit = line.time_unit
            case DeathLine() if (line.server, line.epoch) not in self._deaths:
                self._deaths[line.server, line.epoch] = line
                return line
            case ViewLine() if line.epoch not in self._views:
                self._views[line.epoch] = line
                return self._change(line) if line.epoch > min(self._views) else None
            case RecoveryLine():
                self._recoveries.setdefault(line.epoch, {})[line.server] = line
                return self._recovery(line.epoch)
            case IterationLine() | AbandonedLine():
                self._times.add(line)
            case InstantLine(kind="failure", server=str(server)):
                self._absent.add(server)
            case InstantLine() if line.kind in TOLD and self._is_new(line):
                self._instants.append(line)
                return line
        return None

    @property
    def deaths(self) -> Sequence[DeathLine]:
        """All deaths, by time."""
        return sorted(self._deaths.values(), key=lambda death: death.time)

    @property
    def changes(self) -> Sequence[Change]:
        """All views but the first, by epoch."""
        return [self._change(self._views[epoch]) for epoch in sorted(self._views)[1:]]

    @property
    def has_changed(self) -> bool:
        """Whether there is a view but the first."""
        return len(self._views) > 1

    @property
    def timed(self) -> Sequence[tuple[float, RunEvent]]:
        """All that a person should be told, each with its time, by time."""
        found: list[tuple[float, RunEvent]] = [(death.time, death) for death in self._deaths.values()]
        for change in self.changes:
            found.append((change.view.time, change))
            if change.recovery:
                found.append((change.recovery.began + change.recovery.pause, change.recovery))
        found += [(line.time, line) for line in self._instants]
        return sorted(found, key=lambda each: each[0])

    @property
    def events(self) -> Sequence[RunEvent]:
        """All that a person should be told, by time."""
        return [event for _, event in self.timed]

    @property
    def view(self) -> ViewLine | None:
        """The newest view; None before the first."""
        return self._views[max(self._views)] if self._views else None

    @property
    def usual_seconds(self) -> float | None:
        """How long an iteration took before the first change of views, in the median; None where that is not known."""
        return self._usual(min(self._views))

    def measured(self, epoch: int) -> float | None:
        """The throughput in a view, against that before the first change; None where one of them is not known.

        Args:
            epoch: of the view.
        """
        usual, now = self.usual_seconds, self._usual(epoch)
        return usual / now if usual and now else None

    def cost(self, epoch: int) -> Cost:
        """What a view has cost: the change that led to it, and the iterations made in it.

        These are compared with those before the first change.

        Args:
            epoch: of the view; not of the first one.
        """
        recovery = self._recovery(epoch)
        lost, pause = (recovery.lost, recovery.pause) if recovery else (0.0, 0.0)
        usual = self.usual_seconds
        return Cost(lost, pause, self._slower(epoch, usual, recovery) if usual else None)

    @property
    def costs(self) -> Cost:
        """What all changes of views have cost."""
        return sum((self.cost(epoch) for epoch in sorted(self._views)[1:]), Cost())

    def _slower(self, epoch: int, usual: float, recovery: ViewRecovery | None) -> float:
        kept = self._times.kept(self._views[epoch], self._after(epoch), self._second)
        times = {step: seconds for step, seconds in kept.items() if self._times.is_compared(step)}
        redone = times.pop(recovery.step, None) if recovery else None
        slower = sum(times.values()) - len(times) * usual
        if redone is not None and recovery is not None:
            # What the servers report of this one may have the way into the view in it.
            slower += recovery.redo / self._second - usual
        return slower * self._second

    def _usual(self, epoch: int) -> float | None:
        return self._times.usual(self._views[epoch], self._after(epoch), self._second)

    def _after(self, epoch: int) -> list[ViewLine]:
        return [view for number, view in self._views.items() if number > epoch]

    @property
    def _second(self) -> float:
        """In the run's time unit."""
        return 1e6 / microseconds(self.time_unit)

    def _lost(self, view: ViewLine, began: float) -> float:
        before = [self._views[epoch] for epoch in sorted(self._views) if epoch < view.epoch]
        start = self._times.in_flight(view)
        finished = self._times.remade(view, before, self._second) * self._second
        return finished + (0.0 if start is None else max(0.0, began - start))

    @property
    def servers(self) -> int:
        """How many servers the recordings name, alive or dead."""
        live = {server for view in self._views.values() for server in view.servers}
        return len(live | self._absent | {server for server, _ in self._deaths})

    def _change(self, view: ViewLine) -> Change:
        deaths = self._died(view)
        # The life that follows the last one that ended before.
        ended = sorted(
            (each for each in self._deaths.values() if each.epoch <= view.epoch), key=lambda each: each.epoch
        )
        lives = {each.server: 1 + each.incarnation for each in ended}
        earlier = [self._views[epoch] for epoch in sorted(self._views) if epoch < view.epoch]
        furthest = self._times.furthest(earlier)
        # A server joins or leaves between two iterations, and a run goes on from a checkpoint between two;
        # otherwise one was in flight.
        between = bool(deaths or view.joined or view.moved) or view.restore == "checkpoint"
        interrupted = any(not each.left for each in deaths) or not between
        again = max(furthest - view.step + 1, 1 if interrupted else 0)
        joined = tuple((server, lives.get(server, 0)) for server in view.joined)
        before, start = earlier[-1], earlier[0]
        return Change(view, before.throughput, start.throughput, deaths, joined, again, self._recovery(view.epoch))

    def _died(self, view: ViewLine) -> tuple[DeathLine, ...]:
        before = max((epoch for epoch in self._views if epoch < view.epoch), default=-1)
        return tuple(death for death in self.deaths if before < death.epoch <= view.epoch)

    def _recovery(self, epoch: int) -> ViewRecovery | None:
        view = self._views.get(epoch)
        reported = self._recoveries.get(epoch, {})
        if view is None or not reported or not reported.keys() >= set(view.servers) - set(view.joined):
            return None
        lines = reported.values()
        deaths = self._died(view)
        resumed = min(line.resumed for line in lines)
        stopped = max((death.time for death in deaths), default=min(line.noticed for line in lines))
        began = max(stopped, min(resumed, self._times.ended(epoch)))
        marks = [began]
        for reached in (
            max(line.noticed for line in lines),
            max(line.agreed for line in lines),
            max(line.rebuilt for line in lines),
            max(line.restored for line in lines),
            resumed,
        ):
            # The first server may resume while another still restores: the phases end there.
            marks.append(max(marks[-1], min(reached, resumed)))
        detect, agree, rebuild, restore, start = (after - mark for mark, after in pairwise(marks))
        redo = max(line.redone for line in lines) - resumed
        lost = self._lost(view, began)
        return ViewRecovery(epoch, view.step, len(deaths), began, detect, agree, rebuild, restore, start, redo, lost)

    def _is_new(self, line: InstantLine) -> bool:
        """Several servers that say the same are one event, until one of them says it again."""
        said = self._said_by.setdefault(line.text, set())
        fresh = not said or line.server in said
        if line.server in said:
            said.clear()
        said.add(line.server)
        return fresh


def history_of(lines: Iterable[Line]) -> History:
    """The history that some lines of a run's recordings tell, in any order."""
    history = History()
    for line in sorted(lines, key=lambda line: not isinstance(line, ViewLine)):
        history.add(line)
    return history
