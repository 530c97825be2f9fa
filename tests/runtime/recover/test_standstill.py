"""An iteration that does not come to its end ends the view, and says who waits for whom."""

import threading
from types import FunctionType
from unittest.mock import ANY

import pytest

from harness.examples import QUICK, paper_job
from harness.memory_store import MemoryStore
from recycle.control.board.board import Board
from recycle.job import Server
from recycle.plan.instruction import Op
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.runtime.recover.standstill import (
    CAUSE,
    DISK,
    FACTOR,
    FIRST,
    LEAST,
    NAMED,
    TRANSPORTS,
    StandstillWatch,
    patience,
)

FIRST_STAGE, LAST_STAGE = Server(0, 0), Server(0, 1)
USUAL = 4.0
"""Seconds of an iteration."""


@pytest.fixture(scope="module")
def plan():
    return make_plan(paper_job(pipelines=2, stages=2, micro_batches=2), (), Mode(), QUICK)


class Run:
    """One server's list, executed on a clock of its own."""

    def __init__(self, plan, server):
        self.time, self.usual, self.told, self.warned = 100.0, USUAL, [], []
        self.program = plan.programs[server]
        self.watch = StandstillWatch(
            str(server), server, lambda *told: self.told.append(told), self.warned.append, lambda: self.time
        )
        self.watch.begin(3, plan)
        self.board = Board(MemoryStore(), "token")

    def iterate(self, number, until=None):
        """Execute the list, up to an instruction that does not end if one is named."""
        for instruction in self.program:
            self.watch.before(number, instruction)
            if instruction is until:
                return
            self.time += self.usual / len(self.program)
            self.watch.after(number, instruction, lambda: 0.0)

    def look(self):
        self.watch.look(self.board)
        alarm = self.board.failures.alarm(3)
        return alarm and alarm.cause


def in_transport(act):
    """Do something where a thread waits for another server."""
    return FunctionType((lambda act: act()).__code__, {"__name__": f"{TRANSPORTS}gloo.transfers"})(act)


def instruction_of(plan, server, op):
    return next(each for each in plan.programs[server] if each.op is op)


def test_an_iteration_that_takes_far_longer_than_the_others_ends_the_view(plan):
    run, stuck = Run(plan, LAST_STAGE), instruction_of(plan, LAST_STAGE, Op.F)
    for number in range(3):
        run.iterate(number)
    # Between two iterations the training code may take any time.
    run.time += 10 * FIRST
    assert run.look() is None
    run.iterate(3, until=stuck)
    run.time += FACTOR * USUAL - USUAL
    assert run.look() is None
    run.time += 2 * USUAL
    cause = in_transport(run.look)
    assert cause.startswith(f"{CAUSE}iteration 4 has taken 8")
    assert "times as long as usual, and W0_1 has been at 1F" in cause
    assert cause.endswith("and waits for W0_0")
    assert run.warned == [f"{cause.partition(',')[0]}; all servers stop, and wait for one that is stuck"]
    run.look()
    assert len(run.warned) == 1


def test_of_the_first_iteration_nothing_is_known_and_short_ones_have_their_time(plan):
    run = Run(plan, FIRST_STAGE)
    stuck = run.program[-1]
    run.iterate(0, until=stuck)
    run.time += FIRST - USUAL - 1
    assert run.look() is None
    run.time += 2
    assert run.look().startswith(f"{CAUSE}iteration 1 has taken 60")
    assert patience([0.1, 0.1, 90.0]) == LEAST


@pytest.mark.parametrize(
    ("writes", "seconds", "least"),
    [(False, 0.5, LEAST), (False, 7.0, FACTOR * 7), (True, 0.5, DISK), (True, 60.0, 1200)],
)
def test_what_all_do_together_that_is_in_no_list_stands_still_as_an_iteration_does(plan, writes, seconds, least):
    run = Run(plan, LAST_STAGE)
    for number in range(3):
        run.iterate(number)
        with run.watch.during("a thing", writes=writes):
            run.time += seconds
    # What an iteration takes says nothing about it, nor does another thing.
    with run.watch.during("another", writes=False):
        run.time += 100.0
        assert run.look() is None
    with run.watch.during("a thing", writes=writes):
        run.time += least - 0.1
        assert run.look() is None
        run.time += 1.0
        cause = run.look()
        run.watch.explain(cause)
    assert cause.startswith(f"{CAUSE}a thing has taken {least + 0.9:.0f} s, ")
    assert cause.endswith(f"times as long as usual, and W0_1 has been in a thing for {least + 0.9:.0f} s")
    ((waits_for_nobody, line, _),) = run.told
    assert not waits_for_nobody
    assert line in cause


def test_of_a_first_thing_that_waits_for_no_disk_it_is_known_when_it_stands_still(plan):
    run = Run(plan, FIRST_STAGE)
    with run.watch.during("a save", writes=True):
        run.time += 100 * FIRST
        assert run.look() is None
    # One that was given up says nothing of how long it takes, and where that was until the next view.
    with pytest.raises(ValueError, match="given up"), run.watch.during("an evaluation"):
        raise ValueError("given up")
    run.watch.explain(CAUSE)
    assert run.told.pop() == (False, "W0_0 has been in an evaluation for 0 s", ANY)
    run.watch.begin(3, plan)
    run.time += 100 * FIRST
    assert run.look() is None
    with run.watch.during("an evaluation"):
        run.time += FIRST + 1
        assert run.look() == f"{CAUSE}an evaluation has taken 601 s, and W0_0 has been in an evaluation for 601 s"


def test_while_servers_recover_nothing_stands_still(plan):
    run = Run(plan, LAST_STAGE)
    for number in range(3):
        run.iterate(number)
    run.iterate(3, until=instruction_of(plan, LAST_STAGE, Op.F))
    run.watch.end()
    run.time += 100 * FIRST
    assert run.look() is None
    # Who is asked why it did not stop says where it was. It may read from a disk now.
    assert run.watch.explain(CAUSE)
    ((_, line, _),) = run.told
    assert line.startswith("W0_1 has been at 1F")
    run.watch.begin(4, plan)
    assert run.look() is None
    assert run.watch.explain("W0_0 died")
    run.iterate(3, until=instruction_of(plan, LAST_STAGE, Op.F))
    assert not run.watch.explain("W0_0 died")
    run.time += FACTOR * USUAL + USUAL
    run.watch.look(run.board)
    assert run.board.failures.alarm(4).cause.startswith(f"{CAUSE}iteration 4 has taken")
    assert run.board.failures.alarm(3) is None
    assert not run.watch.explain("W0_0 died")


def test_a_rank_says_where_it_is_for_whom_it_waits_and_what_its_code_does(plan):
    run = Run(plan, FIRST_STAGE)
    run.iterate(0, until=instruction_of(plan, FIRST_STAGE, Op.REDUCE))

    def explain():
        told = threading.Thread(target=run.watch.explain, args=(f"{CAUSE}iteration 1 has taken 600 s",))
        told.start()
        told.join()

    # A rank that computes waits for no other, even if its instruction had to be sent something before.
    explain()
    assert run.told.pop()[:2] == (True, "W0_0 has been at 0REDUCE for 0 s")
    in_transport(explain)
    ((waits_for_nobody, line, stack),) = run.told
    assert not waits_for_nobody
    assert line == "W0_0 has been at 0REDUCE for 0 s and waits for W1_0"
    assert "in test_a_rank_says_where_it_is_for_whom_it_waits_and_what_its_code_does" in stack


def test_of_many_that_a_rank_waits_for_it_names_a_few():
    pipelines = NAMED + 3
    plan = make_plan(paper_job(pipelines=pipelines, stages=2, micro_batches=1), (), Mode(), QUICK)
    run = Run(plan, FIRST_STAGE)
    run.iterate(0, until=instruction_of(plan, FIRST_STAGE, Op.REDUCE))
    in_transport(lambda: run.watch.explain(CAUSE))
    ((_, line, _),) = run.told
    assert line.endswith(f"waits for {' and '.join(f'W{each}_0' for each in range(1, NAMED + 1))} and 2 more")


def test_a_rank_that_is_elsewhere_says_so_aloud_and_no_rank_says_a_thing_of_another_failure(plan):
    run = Run(plan, LAST_STAGE)
    run.iterate(0)
    run.watch.explain("W1_1 was killed by signal 9 (SIGKILL)")
    assert not run.told
    run.watch.explain(CAUSE)
    ((waits_for_nobody, line, _),) = run.told
    assert (waits_for_nobody, line) == (True, "W0_1 is in no iteration")
