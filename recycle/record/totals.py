"""The figures of a whole step, put together from the events of all servers, also while servers die and come back."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from recycle.job import Job
from recycle.record.recording import EvaluationLine, IterationLine, Line, ViewLine


class StepTotal(msgspec.Struct, frozen=True):
    """What all servers together say of a step.

    Attributes:
        step: the number of iterations made before it.
        loss: mean over all micro-batches; NaN if one of them is not finite.
        seconds: how long the slowest server took; None for a look at held-out data.
        again: whether the step was passed on before: a checkpoint took the run back beyond it.
        micro_batches: how many it had; 0 if all those of the job.
    """

    step: int
    loss: float
    seconds: float | None
    again: bool = False
    micro_batches: int = 0

    def rate(self, job: Job | None) -> float:
        """Micro-batches per second; iterations per second where the job is not known."""
        work = (self.micro_batches or sum(job.loads)) if job else 1
        return work / (self.seconds or 1)

    @property
    def held_out(self) -> bool:
        """Whether the loss is that of held-out data."""
        return self.seconds is None


class Totals:
    """Collects events, and passes on the total of each step, once and in order.

    A step counts in the newest view that begins at it or before it: what an older view had begun of it is thrown away.
    It is passed on when all servers of that view have reported it. Where a newer view has begun behind it, it is known
    to be finished, and its losses are enough: some of its servers may be dead.

    The events of one server come in order. Between servers, and between them and views, there is no order, except that
    the first view comes before everything else. Views and evaluations may be reported more than once.

    Args:
        receivers: what is called with every total.
    """

    def __init__(self, *receivers: Callable[[StepTotal], None]) -> None:
        self._receivers = receivers
        self._views: dict[int, ViewLine] = {}
        self._reported: dict[tuple[int, int], dict[str, IterationLine]] = defaultdict(dict)
        self._evaluations: dict[int, EvaluationLine] = {}
        # The last view and step that each server has reported.
        self._last: dict[str, tuple[int, int]] = {}
        self._next = 0
        self._evaluated = -1
        self._furthest = 0
        self._furthest_evaluated = -1

    @property
    def next(self) -> int:
        """The step that is passed on next: where a run went back, those from it on were passed on in vain."""
        return self._next

    def add(self, line: Line) -> None:
        """Take in a line of a recording; only views, iterations and evaluations count."""
        if isinstance(line, IterationLine):
            self._last[line.server] = max((line.epoch, line.step), self._last.get(line.server, (-1, -1)))
        match line:
            case ViewLine():
                self._begin(line)
            case IterationLine() if line.step >= self._next or line.epoch not in self._views:
                self._reported[line.epoch, line.step][line.server] = line
            case EvaluationLine() if line.losses and self._counts(line):
                self._evaluations.setdefault(line.step, line)
            case _:
                return
        self._advance()

    def skip(self) -> None:
        """All that was reported before now has come: pass on what is known of steps of which nothing more will come.

        Those are the steps before one that all servers of the newest view have reported in it. A step that was skipped,
        or whose losses were lost with their servers or lines, is left out.
        """
        if not self._views:
            return
        newest = max(self._views)
        last = [self._last.get(server, (-1, -1)) for server in self._views[newest].servers]
        if last and all(epoch == newest for epoch, _ in last):
            self._pass_over(min(step for _, step in last))

    def finish(self) -> None:
        """There will be no more events: pass on what is known, without steps whose losses died with their servers."""
        self._pass_over(math.inf)

    def _pass_over(self, behind: float) -> None:
        """Nothing more comes of the steps before one."""
        for step in sorted({step for _, step in self._reported if step <= behind}):
            self._next = max(self._next, step)
            self._advance(behind)

    def _begin(self, view: ViewLine) -> None:
        if view.epoch in self._views:
            return
        if not self._views:
            self._next = self._furthest = view.step
        self._views[view.epoch] = view
        if view.restore == "checkpoint":
            self._next = min(self._next, view.step)
            self._evaluated = min(self._evaluated, view.step)
            self._evaluations = {step: each for step, each in self._evaluations.items() if self._counts(each)}

    def _counts(self, line: EvaluationLine) -> bool:
        """Whether no newer view has gone back to before the state that was evaluated."""
        return line.step > self._evaluated and all(
            view.step >= line.step for epoch, view in self._views.items() if epoch > line.epoch
        )

    def _advance(self, behind: float = -1) -> None:
        while self._views:
            self._pass_on_evaluations()
            step = self._next
            epoch = max((each for each, view in self._views.items() if view.step <= step), default=max(self._views))
            reported = self._reported.get((epoch, step), {})
            losses = next((each.losses for each in reported.values() if each.losses), None)
            is_over = step < behind or epoch < max(self._views)
            if losses is None or not (is_over or reported.keys() >= set(self._views[epoch].servers)):
                return
            seconds = max(each.seconds for each in reported.values())
            size = max(each.micro_batches for each in reported.values())
            self._pass_on(StepTotal(step, _mean(losses), seconds, step < self._furthest, size))
            for older in [key for key in self._reported if key[0] <= epoch and key[1] <= step]:
                del self._reported[older]
            self._next += 1
            self._furthest = max(self._furthest, self._next)

    def _pass_on_evaluations(self) -> None:
        for step in sorted(each for each in self._evaluations if each <= self._next):
            losses = self._evaluations.pop(step).losses
            self._pass_on(StepTotal(step, _mean(losses), None, again=step <= self._furthest_evaluated))
            self._evaluated = step
            self._furthest_evaluated = max(self._furthest_evaluated, step)

    def _pass_on(self, total: StepTotal) -> None:
        for receive in self._receivers:
            receive(total)


def totals_of(lines: Iterable[Line]) -> list[StepTotal]:
    """The totals of a run's steps, from the lines of its recordings; where one was made again, the later one.

    Args:
        lines: those of each server in their order.
    """
    found: dict[tuple[bool, int], StepTotal] = {}

    def keep(total: StepTotal) -> None:
        found[total.held_out, total.step] = total

    totals = Totals(keep)
    for line in sorted(lines, key=lambda line: line.epoch if isinstance(line, ViewLine) else math.inf):
        totals.add(line)
    totals.finish()
    return sorted(found.values(), key=lambda total: total.step)


def _mean(losses: Sequence[float | None]) -> float:
    finite = [each for each in losses if each is not None and math.isfinite(each)]
    # Exact, so that no order of the losses can change it.
    return math.fsum(finite) / len(finite) if len(finite) == len(losses) else math.nan
