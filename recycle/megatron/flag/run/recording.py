"""Recordings of a run under the flag, as ``recycle train`` writes them: so it is watched, shown and compared like one.

Each server writes its own, and the first one the plan. What the training code says of losses is taken where it has
averaged them, so that the recordings have what it prints.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Self

import msgspec

from recycle.control.membership.view import Member, ServerRank
from recycle.errors import UserError
from recycle.files import own_folder
from recycle.job import Server
from recycle.megatron.flag.command.flags import RECORD
from recycle.megatron.shared.patching import replace
from recycle.plan.document import save_plan
from recycle.plan.memory import peak_memory
from recycle.plan.plan import Plan
from recycle.record.reading import next_epoch
from recycle.record.recorder import Recorder
from recycle.record.recording import PLAN, EvaluationLine, InstantLine, IterationLine, ViewLine
from recycle.record.reporting import Event, EventFile
from recycle.record.timeline import Span
from recycle.runtime.recover.view_reports import first_view, now
from recycle.saying import say

REMEMBERED = 4
"""Iterations whose lines are known: a view goes back by fewer."""


def begin_recordings(folder: Path | None, plan: Plan) -> int:
    """Make the folder of a run's recordings, on the first rank and before any other one writes there.

    Args:
        folder: which; None where nothing is recorded.
        plan: with which the run begins.

    Returns:
        The number of its first view: where there are recordings of an earlier start, they are gone on with.

    Raises:
        UserError: it cannot be written.
    """
    if folder is None:
        return 0
    try:
        own_folder(folder)
    except OSError as error:
        raise UserError(f"{RECORD} {folder}: cannot be written: {error.strerror}; give another folder") from error
    epoch = next_epoch(folder)
    save_plan(plan, folder / PLAN, private=True)
    say(f"recorded in {folder}; recycle watch {folder} shows how it goes on")
    return epoch


class Recording:
    """A server's recording; a Reporter.

    Args:
        file: what is written to.
        member: whose.
        plan: with which the run begins.
        first: the number of its first view.
        goes_on: whether the file has a recording of an earlier start.
    """

    def __init__(self, file: EventFile, member: Member, plan: Plan, first: int, goes_on: bool) -> None:
        self._file = file
        self._server = str(member.server)
        self._plan = plan
        self._first = first
        self._goes_on = goes_on
        self._views: dict[int, int] = {}
        self._made: deque[IterationLine] = deque(maxlen=REMEMBERED)
        self._done = 0
        if member.incarnation:
            self.tell(InstantLine("warning", now(), self._server, f"{self._server} is started again"))

    @classmethod
    def open(
        cls, folder: Path | None, plan: Plan, first: int, member: Member, rank: ServerRank, iterations: int | None
    ) -> Self | None:
        """The recording of a rank; None where nothing is recorded, or nothing by this rank.

        Args:
            folder: of the run.
            plan: with which it begins.
            first: the number of its first view.
            member: whose.
            rank: of the server; the first one writes.
            iterations: how many the run is to have, if that is known.

        Raises:
            UserError: it cannot be written.
        """
        if folder is None or not rank.is_first:
            return None
        name = str(member) if member.incarnation else str(member.server)
        path = folder / "events" / f"{name}.jsonl"
        goes_on = not member.incarnation and path.exists()
        file = EventFile(path.parent, name, f"{plan.job.name}, under the flag", say, iterations=iterations)
        return cls(file, member, plan, first, goes_on)

    def tell(self, event: Event, spans: Sequence[Span] = ()) -> None:
        """See Reporter."""
        if isinstance(event, ViewLine) and self._goes_on and not self._views:
            # Other than after a failure, what was recorded beyond its first iteration is made anew.
            event = msgspec.structs.replace(event, restore="checkpoint")
        self._file.write(event, spans)

    def enter(self, epoch: int, step: int) -> None:
        """A view was entered; the iterations that it makes again are as they were before.

        Args:
            epoch: of the view.
            step: the iteration that it begins with.
        """
        self._views[epoch] = step
        for line in [each for each in self._made if each.step >= step]:
            self.tell(msgspec.structs.replace(line, epoch=epoch))

    def close(self) -> None:
        """This process ends."""
        self._file.close()

    def install(self, training: Any, arguments: Any, recorder: Recorder) -> None:
        """Have Megatron's iterations and evaluations recorded.

        Args:
            training: Megatron's module of this name.
            arguments: Megatron's.
            recorder: has what was executed in an iteration.
        """
        own_step, own_evaluation = training.train_step, training.evaluate

        @wraps(own_step)
        def train_step(*positional: Any, **keywords: Any) -> Any:
            start = time.monotonic()
            result = own_step(*positional, **keywords)
            self._tell_iteration(int(arguments.curr_iteration), time.monotonic() - start, result[0], recorder)
            return result

        @wraps(own_evaluation)
        def evaluate(*positional: Any, **keywords: Any) -> Any:
            result = own_evaluation(*positional, **keywords)
            if result[0] and self._views:
                done = self._done or int(arguments.iteration)
                self.tell(EvaluationLine(self._server, done, _loss(result[0]), self._epoch_of(done)))
            return result

        replace(training, "train_step", train_step)
        replace(training, "evaluate", evaluate)

    def _tell_iteration(self, step: int, seconds: float, losses: Mapping[str, Any], recorder: Recorder) -> None:
        if not self._views:
            # Without protection there is one view, of which nobody else tells.
            if self._server == str(min(self._plan.programs)):
                self.tell(first_view(self._plan, self._first, step))
            self.enter(self._first, step)
        executed = [each.instruction for each in recorder.entries if each.instruction.op.is_compute]
        job = self._plan.job
        peak = peak_memory(job, Server.parse(self._server), executed)
        size = job.pipelines * (1 + max((each.micro_batch for each in executed), default=-1))
        line = IterationLine(self._server, step, seconds, _loss(losses), peak, self._epoch_of(step), now(), size)
        self.tell(line, recorder.take_spans())
        recorder.clear()
        self._made.append(line)
        self._done = step + 1

    def _epoch_of(self, step: int) -> int:
        """Of the view in which an iteration was made, which may be over when it is told of."""
        return max((epoch for epoch, first in self._views.items() if first <= step), default=max(self._views))


def _loss(losses: Mapping[str, Any]) -> list[float]:
    """What the training code prints first of a batch's losses; nothing but on the last stage."""
    return [float(each) for each in losses.values()][:1]
