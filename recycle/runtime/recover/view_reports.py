"""What a survivor tells of the views that it goes through."""

import time
from collections.abc import Callable, Iterable
from typing import Literal

from recycle.control.membership.messages import Death, Verdict
from recycle.control.membership.view import Member
from recycle.holding import lone_units, units_text
from recycle.placement import Layout
from recycle.plan.plan import Plan
from recycle.record.processes import clock_name
from recycle.record.recorder import NANOSECONDS, Recorder
from recycle.record.recording import AbandonedLine, DeathLine, InstantLine, RecoveryLine, ViewLine
from recycle.record.reporting import Reporter
from recycle.runtime.recover.plans import FIRST

MICROSECONDS = 1e6

ADMITTED, MISSED = "new servers are admitted", "new servers have not come in time, and ask again"
"""Why there is a view after a pause for joiners: with some of them in it, and without any."""

# So many members tell of a view, in case that one of them dies meanwhile.
TELLERS = 2


class Times:
    """When a change of views came how far, on this machine's monotonic clock in seconds; 0 for not yet."""

    def __init__(self, noticed: float = 0.0) -> None:
        self.noticed = noticed
        self.agreed = 0.0
        self.rebuilt = 0.0
        self.restored = 0.0


class ViewReports:
    """Tells whoever watches the run.

    Args:
        member: who tells.
        reporter: passes it on.
        iteration: gives the number by which people know the iteration that leads on from a version.
        last_death: says what the death of the last live server of a stage leads to; empty where memory has copies.

    Attributes:
        times: of the present change of views.
        cause: why there is a new view, if nobody died.
    """

    def __init__(
        self,
        member: Member,
        reporter: Reporter,
        iteration: Callable[[int], int] = int,
        last_death: Callable[[], str] = str,
    ) -> None:
        self.times = Times()
        self.cause = ADMITTED if member.incarnation else "the run begins"
        self._member = member
        self._server = str(member.server)
        self._reporter = reporter
        self._iteration = iteration
        self._last_death = last_death
        self._lone: frozenset[int] = frozenset()
        self._verdicts: list[Verdict] = []
        self._layout: Layout | None = None

    def notice(self, when: float) -> None:
        """The view is over; ``when`` is 0 where that was noticed just now."""
        self.times = Times(when or time.monotonic())

    def decide(self, verdict: Verdict) -> None:
        """A view was decided; it may be over before it has begun."""
        self._verdicts.append(verdict)

    def tell_view(self, plan: Plan) -> None:
        """The last view that was decided has begun; what became of servers in those that never did is told with it.

        Args:
            plan: that it works by.
        """
        verdicts, self._verdicts = self._verdicts, []
        verdict = verdicts[-1]
        moved, self._layout = verdict.layout != self._layout, verdict.layout
        lone = lone_units(plan.job, verdict.view.servers)
        before, self._lone = self._lone, frozenset(lone)
        if self._member not in verdict.view.members[:TELLERS]:
            return
        self._tell_deaths(verdicts)
        causes = "; ".join(
            f"{Member.parse(death.member).server} {death.reason}" for each in verdicts for death in each.deaths
        )
        joined = [name for each in verdicts for name in each.joined if name in verdict.members]
        cause = MISSED if self.cause == ADMITTED and not joined else self.cause
        self._reporter.tell(
            ViewLine(
                verdict.epoch,
                # Before the first instruction of any server in the view, and behind all of the one before it.
                self.times.agreed * MICROSECONDS,
                [str(each) for each in verdict.view.servers],
                [str(Member.parse(name).server) for name in joined],
                self._iteration(verdict.step),
                causes or ("the placement has changed" if moved and not verdict.joined else cause),
                verdict.restore,
                plan.period,
                plan.throughput,
                str(verdict.plan),
                moved,
                plan.job.baseline_name,
                verdict.layout,
            )
        )
        if causes and (new := [unit for unit in lone if unit not in before]) and (end := self._last_death()):
            names = " or ".join(dict.fromkeys(str(lone[unit]) for unit in new))
            self.warn(f"one live server is left of {units_text(plan.job, new)}: if {names} dies, {end}")

    def tell_last(self, verdict: Verdict) -> None:
        """A verdict ends the run: tell all deaths that were not told yet, also those of views that never began."""
        if self._member in verdict.view.members[:TELLERS]:
            self._tell_deaths([*self._verdicts, verdict])

    def _tell_deaths(self, verdicts: Iterable[Verdict]) -> None:
        for each in verdicts:
            for death in each.deaths:
                self._reporter.tell(_line(death, each.epoch, self.times.noticed or time.monotonic()))

    def tell_recovery(self, epoch: int, step: int, recorder: Recorder) -> None:
        """After the first iteration in a view, say what the way there took.

        Args:
            epoch: of the view.
            step: the version from which it was made.
            recorder: what was executed in it.
        """
        times = self.times
        resumed = recorder.entries[0].start / NANOSECONDS if recorder.entries else 0.0
        if not times.restored or resumed < times.restored * MICROSECONDS:
            return  # no iteration was made since
        self.times = Times()
        if not times.noticed:
            return
        self._reporter.tell(
            RecoveryLine(
                self._server,
                epoch,
                self._iteration(step),
                times.noticed * MICROSECONDS,
                times.agreed * MICROSECONDS,
                times.rebuilt * MICROSECONDS,
                times.restored * MICROSECONDS,
                resumed,
                now(),
            )
        )

    def tell_abandoned(self, epoch: int, step: int, recorder: Recorder) -> None:
        """A view has begun: record what was executed of an iteration that is made again in it.

        Args:
            epoch: of the view before it.
            step: the version with which the view begins.
            recorder: what was executed last.
        """
        entries = recorder.entries
        if entries and (iteration := entries[0].iteration) >= self._iteration(step):
            spans = recorder.take_spans()
            if spans:
                self._reporter.tell(AbandonedLine(self._server, epoch, iteration, spans[0].start), spans)

    def tell_move(self, line: str) -> None:
        """Whether chunks move."""
        self._reporter.tell(InstantLine("move", now(), None, line))

    def tell_standstill(self, waits_for_nobody: bool, line: str, stack: str) -> None:
        """Where a rank is in a standstill: recorded with its stack, and said aloud by one that waits for nobody."""
        if waits_for_nobody:
            self.warn(line)
        self._reporter.tell(InstantLine("standstill", now(), self._server, f"{line}\n{stack}"))

    def warn(self, text: str) -> None:
        """Something that the user should know."""
        self._reporter.tell(InstantLine("warning", now(), self._server, text))

    def tell_store(self, kind: Literal["unprotected", "protected"], text: str) -> None:
        """Whether failures can be survived: there is no store any more, or there is one again."""
        self._reporter.tell(InstantLine(kind, now(), self._server, text))

    def end(self, reason: str) -> None:
        """This process ends before the run does."""
        self._reporter.tell(InstantLine("end", now(), self._server, reason))


def first_view(plan: Plan, epoch: int, step: int) -> ViewLine:
    """What is told of the view that a run without protection begins with, and has until its end.

    Args:
        plan: that it works by.
        epoch: its number.
        step: the iteration that it begins with.
    """
    servers, baseline = [str(each) for each in sorted(plan.programs)], plan.job.baseline_name
    figures = plan.period, plan.throughput, str(FIRST)
    return ViewLine(epoch, now(), servers, [], step, "the run begins", "memory", *figures, baseline=baseline)


def _line(death: Death, epoch: int, heard: float) -> DeathLine:
    """A death as it is recorded; of one that another machine noticed, the time is when this one heard of it."""
    member = Member.parse(death.member)
    when = death.time if death.clock == clock_name() else heard
    return DeathLine(str(member.server), member.incarnation, when * MICROSECONDS, death.reason, death.noticed, epoch)


def now() -> float:
    """The time, in microseconds of the clock that all processes of a machine share."""
    return time.monotonic() * MICROSECONDS
