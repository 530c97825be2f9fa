"""The queue of events, the talk of members between two views, and the plans of views."""

import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pytest

from harness.examples import QUICK, paper_job
from harness.memory_store import MemoryStore
from recycle.control.board.board import Board, VerdictBoard
from recycle.control.host.agent import DONE, FENCED, STOPPED
from recycle.control.membership.durations import Durations
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.membership.events import (
    Built,
    Decided,
    Died,
    JoinReady,
    Noticed,
    Overdue,
    Propose,
    Rebuild,
    Reported,
    Resume,
)
from recycle.control.membership.machine import Machine
from recycle.control.membership.messages import Death, Opening, PublishedPlan, Report, Verdict
from recycle.control.membership.view import Member, View
from recycle.errors import NoPlanError, PlanningFailed
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.runtime.errors import NotFinite, ViewBroken
from recycle.runtime.execute.notices import Notices
from recycle.runtime.recover.admission import Admission
from recycle.runtime.recover.gathering import Gathering
from recycle.runtime.recover.plans import FIRST, Plans, ViewPlans
from recycle.runtime.recover.recovery import Recovery
from recycle.runtime.recover.standstill import DISK
from recycle.runtime.recover.survivor import Survivor
from recycle.runtime.recover.training_loop import TrainingLoop

JOB = paper_job(pipelines=2, stages=2, micro_batches=2)
FIRST_MEMBER, SECOND, THIRD, FOURTH = (Member(server, 0) for server in JOB.servers())
NAMES = tuple(map(str, (FIRST_MEMBER, SECOND, THIRD, FOURTH)))
BEGUN = Verdict(0, NAMES, 0, plan=FIRST)
NEXT = Verdict(1, NAMES[:3], 5)
JOINER = Member(FOURTH.server, 1)


class OneAtATime:
    """A machine that proposes at an error, and notes what it is told; no event may come while it is at work."""

    me = leader = FIRST_MEMBER
    leads = True
    view = BEGUN.view

    def __init__(self):
        self.told = []
        self.busy = False

    def handle(self, event):
        assert not self.busy, "told while it was at work"
        self.busy = True
        self.told.append(type(event))
        answers = {Noticed: [Propose(NEXT)], Decided: [Rebuild(NEXT)], Built: [Resume(1, 5)]}
        yield from answers.get(type(event), [])
        self.busy = False


def test_what_comes_of_an_action_is_told_after_all_actions_and_in_order():
    machine, done = OneAtATime(), []
    death = Died("death", Death(str(THIRD), "was killed", "agent", 0.0))
    recovery = Recovery(
        machine,
        SimpleNamespace(propose=lambda _, verdict: verdict, outlive=done.append),
        SimpleNamespace(rebuild=lambda verdict: done.append(verdict) or [death, Built("built", 1)]),
        SimpleNamespace(choose=lambda verdict: verdict),
        SimpleNamespace(abort=lambda: done.append("nobody is served")),
        *[SimpleNamespace()] * 3,
    )
    recovery.tell(Noticed("error", 0, "an error"))
    assert machine.told == [Noticed, Decided, Died, Built]
    assert done == ["nobody is served", NEXT, BEGUN.view]
    assert recovery.step == 5


def test_who_is_not_told_with_whom_the_run_begins_ends_with_its_line():
    ends = []
    recovery = Recovery(
        Machine(FIRST_MEMBER, JOB),
        SimpleNamespace(await_opening=lambda: None),
        *[SimpleNamespace()] * 5,
        SimpleNamespace(end=ends.append),
    )
    recovery.enter()
    assert recovery.end == STOPPED
    assert ends == ["nobody has said with whom the run begins: train again"]


def test_a_store_that_is_lost_between_the_first_view_and_the_report_ends_the_process_with_its_line():
    ends = []
    gathering = MagicMock(
        await_opening=lambda: Opening(0, NAMES), publish=MagicMock(side_effect=StoreLost("it is gone"))
    )
    recovery = Recovery(
        Machine(FIRST_MEMBER, JOB),
        gathering,
        *[MagicMock()] * 3,
        MagicMock(report=lambda epoch, stop: Report(str(FIRST_MEMBER), epoch, 0, 0)),
        MagicMock(),
        SimpleNamespace(end=ends.append, cause=""),
    )
    recovery.enter()
    assert recovery.end == STOPPED
    assert ends == ["the store was lost during a recovery: resume from the last checkpoint"]


def test_who_finds_its_server_in_the_run_again_says_so_and_ends():
    ends = []
    recovery = Recovery(
        Machine(JOINER, JOB),
        SimpleNamespace(),
        *[SimpleNamespace()] * 2,
        SimpleNamespace(find_rival=lambda view: FOURTH),
        *[SimpleNamespace()] * 2,
        SimpleNamespace(end=ends.append),
    )
    recovery.enter()
    assert recovery.end == FENCED
    assert ends == ["W1_1 was started twice, and is in the run already: this process takes no part"]


def test_who_is_in_a_view_in_the_place_of_a_joiner_is_its_rival_once_all_would_miss_it_if_it_were_dead(monkeypatch):
    board = Board(MemoryStore(), "token")
    store = SimpleNamespace(board=board, durations=Durations(), endpoint=None)
    admission, other = Admission(JOINER, None, store, None), Member(JOINER.server, 2)
    own, without, with_other = View(3, (FIRST_MEMBER, JOINER)), View(4, (FIRST_MEMBER,)), View(5, (FIRST_MEMBER, other))
    monkeypatch.setattr("recycle.runtime.recover.admission.time.monotonic", lambda: now)
    now = 0.0
    assert [admission.find_rival(view) for view in (own, without, with_other)] == [None] * 3
    now = Durations().missed
    assert admission.find_rival(with_other) is None
    now += 1.0
    assert admission.find_rival(with_other) == other
    assert admission.find_rival(without) is None
    board.failures.publish_death(died(other))
    assert admission.find_rival(with_other) is None
    now += 2 * Durations().missed
    assert admission.find_rival(with_other) is None


class Talk:
    """Gathering over a store in memory, with a machine that is in the first view."""

    def __init__(self, member=FIRST_MEMBER):
        self.store = MemoryStore()
        self.board = Board(self.store, "token")
        store = SimpleNamespace(board=self.board, durations=Durations())
        self.gathering = Gathering(member, store)
        self.machine = Machine(member, JOB)
        self.board.verdicts.propose(BEGUN)
        self.machine.handle(Decided("view/0", BEGUN))

    def look(self):
        return list(self.gathering.look(self.machine))

    def tell_all(self):
        for event in self.look():
            self.machine.handle(event)


def report(member):
    return Report(str(member), 0, 5, 5)


def died(member):
    return Death(str(member), "was killed", "agent", 0.0)


def test_who_leads_hears_everything_once_and_of_joiners_that_are_alive():
    talk = Talk()
    failures = talk.board.failures
    failures.publish_report(report(SECOND))
    failures.tell_deaths(0, died(FOURTH))
    failures.publish_report(report(JOINER))
    gone = Member(FOURTH.server, 2)
    failures.publish_death(died(gone))
    failures.publish_report(report(gone))
    assert talk.look() == [
        Reported(f"report/0/{SECOND}/0", report(SECOND)),
        Died(f"death/{FOURTH}", died(FOURTH)),
        JoinReady(f"join/0/{JOINER}/0", report(JOINER)),
    ]
    assert talk.look() == []


def test_a_verdict_of_somebody_else_is_heard():
    for member in (FIRST_MEMBER, SECOND):
        talk = Talk(member)
        talk.board.verdicts.propose(NEXT)
        assert talk.look() == [Decided("view/1", NEXT)]


def test_who_does_not_lead_waits_for_the_leader_alone_and_reads_all_when_it_leads_itself():
    talk = Talk(THIRD)
    talk.board.failures.publish_report(report(FOURTH))
    talk.board.declare_dead([died(FIRST_MEMBER)], "agent")
    assert talk.look() == [Died(f"death/{FIRST_MEMBER}", died(FIRST_MEMBER))]
    talk.board.declare_dead([died(SECOND)], "agent")
    for _ in range(2):
        talk.tell_all()
    assert talk.machine.leader == THIRD
    assert [type(each) for each in talk.look()] == [Reported, Died, Died]


def test_who_proposes_ends_the_wait_of_those_who_have_not_heard_of_a_death():
    talk = Talk(SECOND)
    talk.board.failures.publish_death(died(FIRST_MEMBER))
    talk.tell_all()
    assert talk.machine.leader == SECOND
    talk.gathering.propose(BEGUN.view, NEXT)
    for leader in (FIRST_MEMBER, SECOND):
        # Who has not read the verdict before cannot make use of what comes with it.
        assert talk.board.verdicts.await_turn(0, leader, 60) is None
        assert talk.store.get(f"epoch/0/bells/{leader}") is not None


def test_a_death_behind_the_entry_that_decided_is_left_to_the_members_of_the_next_view():
    talk = Talk()
    talk.board.failures.publish_report(report(SECOND))
    talk.board.failures.tell_deaths(0, died(THIRD))
    events = talk.gathering.look(talk.machine)
    assert next(events) == Reported(f"report/0/{SECOND}/0", report(SECOND))
    stored = talk.gathering.propose(BEGUN.view, NEXT)
    assert (stored.heard, stored.unheard) == (1, (died(THIRD),))
    assert talk.board.failures.unheard(talk.board.verdicts.newest()) == (died(THIRD),)


def test_who_proposes_looks_for_deaths_when_its_verdict_is_stored_and_not_before(monkeypatch):
    talk, propose = Talk(), VerdictBoard.propose

    def tell_and_propose(board, verdict):
        talk.board.failures.tell_deaths(0, died(THIRD))
        return propose(board, verdict)

    monkeypatch.setattr(VerdictBoard, "propose", tell_and_propose)
    assert talk.gathering.propose(BEGUN.view, NEXT).unheard == (died(THIRD),)


def test_who_does_not_answer_in_time_is_overdue_again_and_again(monkeypatch):
    talk = Talk(SECOND)
    talk.board.failures.publish_report(report(FIRST_MEMBER))
    assert talk.look() == []
    monkeypatch.setattr("recycle.runtime.recover.gathering.time.monotonic", lambda: float("inf"))
    heard = talk.look()
    assert Reported(f"report/0/{FIRST_MEMBER}/0", report(FIRST_MEMBER)) in heard
    late = [each for each in [*heard, *talk.look()] if isinstance(each, Overdue)]
    assert [each.member for each in late] == [THIRD, FOURTH] * 2
    assert len({each.id for each in late}) == 4


def test_who_may_wait_for_a_disk_is_overdue_later(monkeypatch):
    talk = Talk(SECOND)
    talk.board.failures.publish_report(report(FIRST_MEMBER))
    assert talk.look() == []
    talk.board.failures.tell_between(0, FOURTH)
    talk.board.failures.tell_between(1, THIRD)
    now = time.monotonic() + Durations().answer + 1
    monkeypatch.setattr("recycle.runtime.recover.gathering.time.monotonic", lambda: now)
    assert [each.member for each in talk.look() if isinstance(each, Overdue)] == [THIRD]
    now += DISK
    assert [each.member for each in talk.look() if isinstance(each, Overdue)] == [THIRD, FOURTH]


def test_a_plan_that_is_made_for_a_view_is_found_by_another_member():
    whole = make_plan(JOB, (), Mode(), QUICK)
    store = SimpleNamespace(board=Board(MemoryStore(), "token"))
    made = []

    def make(dead):
        made.append(make_plan(JOB, dead, Mode(), QUICK))
        return made[-1]

    mine, theirs = (ViewPlans(each, JOB, Plans(whole, None, make), store) for each in (FIRST_MEMBER, SECOND))
    verdict = mine.choose(NEXT)
    assert verdict.plan == PublishedPlan(str(FIRST_MEMBER))
    assert str(verdict.plan) == "made now by W0_0#0"
    found = theirs.find(verdict)
    assert found.programs[SECOND.server] == made[0].programs[SECOND.server]
    assert len(made) == 1
    assert mine.choose(Verdict(1, NAMES, 5)).plan == FIRST
    # Who comes late to a view finds that the others have done with it.
    with pytest.raises(ViewBroken, match="the plan of view 2 is gone"):
        theirs.find(msgspec.structs.replace(verdict, epoch=2))


@pytest.mark.parametrize("error", [NoPlanError, PlanningFailed])
def test_where_no_plan_can_be_made_the_verdict_says_why_the_run_stops(error):
    def refuse(_):
        raise error("no room for it")

    plans = Plans(make_plan(JOB, (), Mode(), QUICK), None, refuse)
    verdict = ViewPlans(FIRST_MEMBER, JOB, plans, SimpleNamespace()).choose(NEXT)
    assert verdict.stop == "no room for it"


def test_where_the_store_does_not_take_a_plan_the_verdict_says_why_the_run_stops():
    class Refusing(MemoryStore):
        def set_many(self, values):
            raise ControlError("too large")

    plan = make_plan(JOB, (), Mode(), QUICK)
    store = SimpleNamespace(board=Board(Refusing(), "token"))
    verdict = ViewPlans(FIRST_MEMBER, JOB, Plans(plan, None, lambda _: plan), store).choose(NEXT)
    assert (verdict.stop, verdict.plan) == ("too large", None)


class Ending:
    """A survivor that is told at its second boundary that it has to end, if it ever is."""

    def __init__(self, ends):
        self.step, self.end, self.calls, self.ends = 0, None, [], ends
        self.is_parting = self.is_end = False

    def exchange_notices(self, *, unsaved):
        if self.ends and self.step == 2:
            self.end = FENCED
        return Notices()

    def advance(self):
        self.step += 1

    def __getattr__(self, name):
        return lambda: self.calls.append(name)


@pytest.mark.parametrize(("ends", "status", "steps"), [(False, DONE, 4), (True, FENCED, 2)])
def test_the_loop_ends_with_training_or_with_the_process(ends, status, steps):
    survivor = Ending(ends)
    iterates = {"between": lambda step, *, save, settle: None, "iterate": lambda step: None}
    loop = SimpleNamespace(last=4, **iterates, saves_again=False, owes_checkpoint=False)
    assert TrainingLoop(survivor, loop).run() == status
    assert survivor.step == steps
    assert ("leave" in survivor.calls) == (not ends)
    assert survivor.calls[-1] == "stop"


@pytest.mark.parametrize("made", [0, 1, 2])
def test_a_value_that_is_not_finite_ends_the_run_only_if_its_iteration_was_not_right_meanwhile(made):
    """It is known with the next one; and all may go back to a checkpoint before it."""
    survivor = Survivor.__new__(Survivor)
    recovery = SimpleNamespace(step=4, stop="", view=MagicMock())
    others = {"_moving": SimpleNamespace(look=lambda: False), "_reports": MagicMock(), "_trainee": MagicMock()}
    vars(survivor).update(others, _recovery=recovery, _spoiled=set())
    survivor._judge(NotFinite("a norm is NaN"))
    for _ in range(made):
        survivor.advance()
    recovery.step = 4
    survivor._judge(NotFinite("a norm is NaN"))
    assert bool(recovery.stop) == (made < 2)
