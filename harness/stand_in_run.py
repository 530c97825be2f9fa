"""A run that survives over the stand-in for NCCL: its servers are threads, which end at random moments without a word.

All of recovery is real: the store, the alarms, the views, the plans, what joiners are sent. Stages are emulated, and
count what they have done of the batch, so that a sum that lacks something or has it twice is found in the reduction.
"""

import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple
from unittest import mock

import torch

from harness.emulated_server import Emulated, EmulatedServer
from harness.emulated_stage import EmulatedStage
from harness.examples import QUICK, paper_job
from harness.stand_in import Library
from harness.stand_in_transport import connects_beside, ends_over
from recycle.control.board.board import Board
from recycle.control.membership.addresses import LOOPBACK
from recycle.control.membership.durations import Durations
from recycle.control.membership.messages import Death, Description, Opening
from recycle.control.membership.view import Member, View
from recycle.control.store.tcp_store import TorchStore, listen, serve
from recycle.job import Job, Server
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.plan.plan import Plan
from recycle.planner.make import make_plan
from recycle.record.reporting import Reporters
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.notices import NoticeExchange
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.join import serving
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.net.network import Network
from recycle.runtime.recover import rebuilding
from recycle.runtime.recover.plans import Plans
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.training_loop import TrainingLoop

JOB = paper_job(pipelines=3, stages=2, micro_batches=3, released=0)
DURATIONS = Durations(beat=0.1, silence=30.0, hang=30.0, rebuild=30.0, answer=30.0, transfer=60.0)
ENDLESS = 10**9
AFTERWARDS = 10
"""Iterations from the last death's recovery to the end."""


class Killed(BaseException):
    """The process that a thread plays is gone."""


class Failed(AssertionError):
    """A run did not keep its promise."""


class Mortal:
    """Says whether the process that a thread plays still lives. Threads are told apart, so that only it dies.

    Args:
        member: who.
    """

    def __init__(self, member: Member) -> None:
        self.member = member
        self.doomed = threading.Event()
        self._thread = 0

    def begin(self) -> None:
        """This is the thread."""
        self._thread = threading.get_ident()

    def live(self) -> None:
        """Raise if it is over, in the thread that trains."""
        if self.doomed.is_set() and threading.get_ident() == self._thread:
            raise Killed

    def before(self, _: int, __: Instruction) -> None:
        """See Hooks."""
        self.live()

    def after(self, _: int, __: Instruction, ___: Callable[[], float]) -> None:
        """See Hooks."""
        self.live()


class MortalStore(TorchStore):
    """A connection of who may die before and after every request."""

    def __init__(self, mortal: Mortal, port: int) -> None:
        self._mortal = mortal
        super().__init__(LOOPBACK, port)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        self._mortal.live()
        with super()._reached():
            yield
        self._mortal.live()


class Door(NamedTuple):
    """An Endpoint of who may die."""

    mortal: Mortal
    endpoint: Endpoint

    def connect(self, _: float = 30.0) -> MortalStore:
        """See Endpoint."""
        return MortalStore(self.mortal, self.endpoint.port)

    def board(self, _: float = 30.0) -> Board:
        """See Endpoint."""
        return Board(self.connect(), self.endpoint.token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.endpoint, name)


class CountingStage(EmulatedStage):
    """Counts the weight gradients of every micro-batch since the last step, and sees whether a message was wrong."""

    def __init__(self, job: Job, server: Server, *others: Any) -> None:
        super().__init__(job, server, *others)
        self.counts = torch.zeros(job.pipelines, job.micro_batches, dtype=torch.int64)
        self.wrong: list[str] = []

    def weight_gradient(self, micro_batch: MicroBatch) -> None:
        """See PipelineStage."""
        super().weight_gradient(micro_batch)
        self.counts[micro_batch.home, micro_batch.number] += 1

    def backward(self, micro_batch: MicroBatch, received: torch.Tensor | None) -> torch.Tensor | None:
        """See PipelineStage."""
        self.counts[micro_batch.home, micro_batch.number] += 1
        return super().backward(micro_batch, received)

    def drop(self) -> None:
        """See PipelineStage."""
        super().drop()
        self.counts.zero_()
        self.wrong.clear()

    def _require(self, *message: Any) -> None:
        try:
            super()._require(*message)
        except AssertionError as error:
            self.wrong.append(str(error))


class CountingServer(EmulatedServer):
    """An emulated server whose reductions must have every micro-batch of the batch once."""

    def __init__(self, run: "StandInRun", server: Server) -> None:
        super().__init__(Emulated(JOB, True, 0.0, 0, size=8), server, Reporters())
        self.entered: View | None = None
        self._totals: dict[int, torch.Tensor] = {}
        self.iterated = -1
        self._run = run
        self._stages = [CountingStage(JOB, server, each, 0.0, self._sleeper, 8) for each in JOB.chunks[server.stage]]
        self._network: Network | None = None

    @property
    def last(self) -> int:
        """See Loop."""
        return self._run.last

    def connect(self, plan: Plan, network: Network, hooks: Sequence[Hooks], notices: NoticeExchange | None) -> None:
        """See Connectable."""
        self._network = network
        super().connect(plan, network, (*hooks, self), notices)
        # It would meet the peers in host memory, where nothing is garbage; the sum of the counts is the reduction here.
        assert self._update is not None
        self._update.reduce = lambda chunk, *, last: None  # type: ignore[method-assign]
        self.entered = network.view

    def before(self, _: int, instruction: Instruction) -> None:
        """See Hooks: a reduction is of the whole batch, unless it ends with anything."""
        if instruction.op is Op.REDUCE:
            assert self._network is not None
            stages = zip(JOB.chunks[self._network.server.stage], self._stages, strict=True)
            (stage,) = (each for number, each in stages if number == instruction.stage)
            assert isinstance(stage, CountingStage)
            total = stage.counts.clone()
            self._network.peers.sum(total)
            self._totals[instruction.stage] = total
            self._run.garbage += not is_whole(total)
            stage.counts.zero_()

    def after(self, _: int, instruction: Instruction, __: Callable[[], float]) -> None:
        """See Hooks: what is stepped with was right."""
        if instruction.op is Op.STEP:
            total = self._totals.pop(instruction.stage)
            assert is_whole(total), f"stepped with micro-batches so often: {total.tolist()}"
            self._run.sums += 1

    def iterate(self, step: int) -> None:
        """See Loop."""
        super().iterate(step)
        self.iterated = step


class Life:
    """One life of a server, in a thread."""

    def __init__(self, run: "StandInRun", member: Member) -> None:
        self.member = member
        self.mortal = Mortal(member)
        self.trainee = CountingServer(run, member.server)
        self._run = run
        self._thread = threading.Thread(target=self._live, name=str(member), daemon=True)
        self._thread.start()

    def is_in(self, members: Sequence[Member]) -> bool:
        """Whether it has made an iteration in a view of these members."""
        view = self.trainee.entered
        return view is not None and view.members == tuple(members) and self.trainee.iterated >= self.trainee.newest - 1

    def join(self, timeout: float) -> bool:
        """Wait for its end; whether it came."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _live(self) -> None:
        run, mortal = self._run, self.mortal
        mortal.begin()
        run.mortals.mine = mortal
        try:
            survivor = Survivor(
                self.member,
                JOB,
                self.trainee.trainee,
                Door(mortal, run.endpoint),  # type: ignore[arg-type]
                DURATIONS,
                Plans(planned(()), None, lambda dead: planned(tuple(sorted(dead)))),
                Reporters(),
                (mortal,),
            )
            status = TrainingLoop(survivor, self.trainee).run()
            if status:
                run.fail(f"{self.member} ended with status {status}")
        except Killed:
            run.library.die()
            run.host.die()
            run.report_death(self.member)
        except BaseException:
            run.fail(f"{self.member}: {traceback.format_exc()}")


def is_whole(total: torch.Tensor) -> bool:
    """Whether a reduction has every micro-batch once."""
    return bool((total == 1).all())


@cache
def planned(dead: tuple[Server, ...]) -> Plan:
    """The plan for some dead servers, made once."""
    return make_plan(JOB, dead, Mode(), QUICK)


class Outcome(NamedTuple):
    """What a run has seen.

    Attributes:
        deaths: of servers.
        second: how many of them came while the one before was being recovered from.
        iterations: that were made.
        sums: that were compared with what they have to be, over all servers.
        garbage: sums that ended with anything, and were not stepped with.
        seconds: from a death until all servers, the new one too, train together; for each round.
    """

    deaths: int
    second: int
    iterations: int
    sums: int
    garbage: int
    seconds: tuple[float, ...]


class StandInRun:
    """A run in this process.

    Args:
        seed: of the moments and of who dies.
        one_queue: whether what a server starts runs one after the other.
        patience: seconds in which a recovery must come to its end, else the run hangs.

    Attributes:
        last: the step at which it ends.
        sums: how many sums were right that servers stepped with.
        garbage: how many ended with anything, because another server had given them up; no server stepped with those.
    """

    def __init__(self, seed: int, one_queue: bool, patience: float = 60.0) -> None:
        self.last = ENDLESS
        self.sums = self.garbage = 0
        self.mortals = threading.local()
        self.library = Library(one_queue, self._check)
        self.host = self.library.apart()
        self._random = random.Random(seed)
        self._patience = patience
        self._errors: list[str] = []
        listener = listen()
        self._store = serve(listener)
        self.endpoint = Endpoint(LOOPBACK, self._store.port, os.urandom(8).hex())
        self._board = self.endpoint.board()
        self._lives: dict[Server, Life] = {}
        self._threads = set(threading.enumerate())

    def run(self, deaths: int, progress: Callable[[int], None] = lambda _: None) -> Outcome:
        """Begin, let servers die and come back, and end.

        Args:
            deaths: how many.
            progress: told how many there were.

        Raises:
            Failed: something was wrong, or did not go on.
        """
        _, connect_pair = ends_over(self.library)
        connect = connects_beside(self.library, self.host)
        with (
            mock.patch.object(rebuilding, "connect", connect),
            mock.patch.object(serving, "connect_pair", connect_pair),
        ):
            self._board.describe(Description({}, JOB))
            view = View.of(planned(()))
            self._board.verdicts.open(Opening.of(view, "memory"))
            self._lives = {each.server: Life(self, each) for each in view.members}
            self._await_whole()
            died, second = 0, 0
            seconds = []
            while died < deaths:
                begun = time.monotonic()
                victims = self._strike(min(2, deaths - died))
                died += len(victims)
                second += len(victims) - 1
                self._await_whole()
                seconds.append(time.monotonic() - begun)
                progress(died)
            steps = max(each.trainee.newest for each in self._lives.values())
            self.last = steps + AFTERWARDS
            for each in self._lives.values():
                self._await(partial(each.join, 0.01), f"the end of {each.member}")
            self._look()
            self._await(lambda: not self._threads_left(), "the end of all threads")
        return Outcome(died, second, self.last, self.sums, self.garbage, tuple(seconds))

    def report_death(self, member: Member) -> None:
        """What an agent does, and the launcher after it: say that a server is dead, and start its next life."""
        self._board_of_thread().declare_dead([Death(str(member), "was killed", "agent", time.monotonic())], "agent")
        self._start_again(member.server)

    def fail(self, error: str) -> None:
        """Something is wrong."""
        self._errors.append(error)

    def _strike(self, most: int) -> list[Life]:
        """Let one server die at a random moment, and sometimes another one while that is being recovered from."""
        draw = self._random
        stages = [draw.sample(range(JOB.pipelines), JOB.pipelines - 1) for _ in range(JOB.depth)]
        servers = [Server(pipeline, stage) for stage, each in enumerate(stages) for pipeline in each]
        victims = [self._lives[each] for each in draw.sample(servers, draw.randint(1, most))]
        for each in victims:
            time.sleep(draw.uniform(0, 0.1))
            each.mortal.doomed.set()
        for each in victims:
            self._await(partial(self._is_over, each), f"the death of {each.member}")
        return victims

    def _is_over(self, life: Life) -> bool:
        return self._lives[life.member.server] is not life

    def _start_again(self, server: Server) -> None:
        life = Member(server, self._board_of_thread().joining.new_incarnation(server))
        self._lives[server] = Life(self, life)

    def _board_of_thread(self) -> Board:
        return self.endpoint.board()

    def _await_whole(self) -> None:
        def is_whole() -> bool:
            members = sorted(each.member for each in self._lives.values())
            return all(each.is_in(members) for each in self._lives.values())

        self._await(is_whole, "a view of all servers")

    def _await(self, come: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + self._patience
        while not come():
            self._look()
            if time.monotonic() > end:
                raise Failed(f"{what} has not come within {self._patience:g} s\n{_stacks()}")
            time.sleep(0.002)

    def _threads_left(self) -> set[threading.Thread]:
        return set(threading.enumerate()) - self._threads

    def _look(self) -> None:
        if self._errors:
            raise Failed("\n".join(self._errors))

    def _check(self) -> None:
        mortal = getattr(self.mortals, "mine", None)
        if mortal is not None:
            mortal.live()


def _stacks() -> str:
    """Where all threads are."""
    names = {each.ident: each.name for each in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
