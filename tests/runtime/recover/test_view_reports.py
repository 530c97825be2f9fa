"""What survivors tell of views, also of those that were over before they began."""

import msgspec
import pytest

from harness.examples import paper_plan
from recycle.control.membership.messages import Death, Verdict
from recycle.control.membership.view import Member
from recycle.holding import own_layout
from recycle.job import Server
from recycle.plan.instruction import Instruction, Op
from recycle.record.history import history_of
from recycle.record.recorder import HostMoment, Recorder
from recycle.record.recording import AbandonedLine, DeathLine, InstantLine, ViewLine
from recycle.runtime.recover.plans import FIRST
from recycle.runtime.recover.view_reports import ADMITTED, MISSED, ViewReports, first_view
from recycle.view.history import summarise

EVERYBODY = ("W0_0#0", "W0_1#0", "W1_0#0", "W1_1#0", "W2_0#0", "W2_1#0")


class Listener:
    def __init__(self):
        self.lines = []
        self.spans = []

    def tell(self, event, spans=()):
        self.lines.append(event)
        self.spans.extend(spans)


def death(name, second):
    return Death(name, f"was killed at {second} s", "agent", float(second))


def verdict(epoch, *dead, joined=()):
    members = tuple(name for name in EVERYBODY if name not in dead)
    deaths = (death(dead[-1], epoch),) if dead else ()
    return Verdict(epoch, members, step=7, deaths=deaths, joined=joined, plan=FIRST)


def reports(member="W0_0#0", last_death=str):
    listener = Listener()
    return ViewReports(Member.parse(member), listener, last_death=last_death), listener


def told(*verdicts, member="W0_0#0"):
    view_reports, listener = reports(member)
    view_reports.cause = "somebody came"
    for each in verdicts:
        view_reports.decide(each)
    view_reports.tell_view(paper_plan())
    return view_reports, listener.lines


def test_who_died_in_a_view_that_never_began_is_told_with_the_next_one():
    _, lines = told(verdict(1, "W1_0#0"), verdict(2, "W1_0#0", "W1_1#0"))
    *deaths, view = lines
    assert [(each.server, each.time, each.epoch) for each in deaths] == [("W1_0", 1e6, 1), ("W1_1", 2e6, 2)]
    assert all(isinstance(each, DeathLine) for each in deaths)
    assert isinstance(view, ViewLine)
    assert view.epoch == 2
    assert view.cause == "W1_0 was killed at 1 s; W1_1 was killed at 2 s"


@pytest.mark.parametrize(("member", "servers"), [("W0_0#0", ["W1_0", "W1_1"]), ("W2_1#0", [])])
def test_who_died_before_the_end_of_a_run_is_told_at_its_end(member, servers):
    view_reports, listener = reports(member)
    view_reports.decide(verdict(1, "W1_0#0"))
    view_reports.tell_last(verdict(2, "W1_0#0", "W1_1#0"))
    assert [each.server for each in listener.lines] == servers
    assert summarise(history_of([first_view(paper_plan(), 0, 0), *listener.lines]), 6)[:1] == (
        ["2 failures, no rejoins, no iterations made again"] if servers else []
    )


def test_a_view_whose_memory_is_tight_is_compared_with_1f1b_within_it():
    for limit, name in ((2, "fault-free 1F1B within this memory"), (4, "fault-free 1F1B")):
        plan, (view_reports, listener) = paper_plan(limit=limit), reports()
        view_reports.decide(verdict(1))
        view_reports.tell_view(plan)
        assert [each.baseline for each in (*listener.lines, first_view(plan, 0, 0))] == [name, name]


def test_the_time_of_a_death_on_another_clock_is_when_it_was_heard_of():
    view_reports, listener = reports()
    view_reports.notice(9.0)
    elsewhere = Death("W1_0#0", "was killed", "agent", 1.0, clock="of another machine")
    view_reports.decide(Verdict(1, EVERYBODY[:2], step=7, deaths=(elsewhere, death("W1_1#0", 2)), plan=FIRST))
    view_reports.tell_view(paper_plan())
    assert [each.time for each in listener.lines[:2]] == [9e6, 2e6]


def test_who_came_in_such_a_view_and_is_still_there_is_told_as_well():
    came = ("W1_0#0", "W1_1#0")
    _, (_, view) = told(verdict(1, joined=came), verdict(2, "W1_1#0"))
    assert view.joined == ["W1_0"]


def test_what_a_recovery_took_is_told_with_the_first_iteration_that_is_made_after_it_and_once():
    view_reports, lines = told(verdict(1, "W1_0#0"))
    recorder, forward = Recorder(Server(0, 0)), Instruction(Op.F, 0, 0, 0)
    view_reports.notice(10.0)
    view_reports.times.agreed, view_reports.times.rebuilt, view_reports.times.restored = 11.0, 12.0, 13.0
    view_reports.tell_recovery(1, 7, recorder)
    recorder.add(forward, HostMoment(9 * 10**9), HostMoment(9 * 10**9 + 1))
    view_reports.tell_recovery(1, 7, recorder)
    assert len(lines) == 2
    recorder.clear()
    recorder.add(forward, HostMoment(14 * 10**9), HostMoment(15 * 10**9))
    view_reports.tell_recovery(1, 7, recorder)
    view_reports.tell_recovery(1, 7, recorder)
    (line,) = lines[2:]
    assert (line.noticed, line.agreed, line.rebuilt, line.restored, line.resumed) == (10e6, 11e6, 12e6, 13e6, 14e6)


def test_what_was_executed_of_an_iteration_that_is_made_again_is_told_once_and_of_one_that_stands_is_not():
    recorder, (view_reports, listener) = Recorder(Server(0, 0)), reports()
    recorder.iteration = 6
    recorder.add(Instruction(Op.F, 0, 0, 0), HostMoment(1000), HostMoment(3000))
    view_reports.tell_abandoned(0, 7, recorder)
    assert (listener.lines, listener.spans) == ([], [])
    view_reports.tell_abandoned(0, 6, recorder)
    view_reports.tell_abandoned(0, 6, recorder)
    assert listener.lines == [AbandonedLine("W0_0", 0, 6, 1.0)]
    assert [(span.iteration, span.start, span.end) for span in listener.spans] == [(6, 1.0, 3.0)]


def test_a_view_begins_when_it_was_agreed_on_and_so_before_anything_is_executed_in_it():
    view_reports, listener = reports()
    view_reports.notice(9.0)
    view_reports.times.agreed = 10.0
    layout = own_layout(paper_plan().job)
    view_reports.decide(msgspec.structs.replace(verdict(1, "W1_0#0"), layout=layout))
    view_reports.tell_view(paper_plan())
    assert listener.lines[-1].time == 10e6
    assert listener.lines[-1].layout == layout


@pytest.mark.parametrize(("joined", "cause"), [(("W1_0#1",), ADMITTED), ((), MISSED)])
def test_a_pause_to_which_no_joiner_came_is_not_said_to_have_admitted_any(joined, cause):
    view_reports, listener = reports()
    view_reports.cause = ADMITTED
    members = tuple(sorted((*EVERYBODY[:2], *joined)))
    view_reports.decide(Verdict(1, members, step=7, joined=joined, plan=FIRST))
    view_reports.tell_view(paper_plan())
    (view,) = listener.lines
    assert view.cause == cause


def test_everything_is_told_once_and_by_the_first_members_only():
    view_reports, lines = told(verdict(1, "W1_0#0"))
    assert len(lines) == 2
    view_reports.decide(verdict(2, joined=("W1_0#0",)))
    view_reports.tell_view(paper_plan())
    (view,) = lines[2:]
    assert (view.cause, view.joined) == ("somebody came", ["W1_0"])
    assert told(verdict(1, "W1_0#0"), member="W2_1#0")[1] == []


def warnings_of(*verdicts, last_death=lambda: "the run ends"):
    view_reports, listener = reports(last_death=last_death)
    for each in verdicts:
        view_reports.decide(each)
        view_reports.tell_view(paper_plan())
    return [each.text for each in listener.lines if isinstance(each, InstantLine)]


def test_of_which_stage_one_live_server_is_left_is_said_at_the_death_that_leads_to_it():
    first = "one live server is left of stage 0: if W0_0 dies, the run ends"
    then = "one live server is left of stage 1: if W0_1 dies, the run ends"
    assert warnings_of(verdict(1, "W1_0#0")) == []
    two = verdict(2, "W1_0#0", "W2_0#0")
    assert warnings_of(two) == [first]
    assert warnings_of(verdict(1, "W1_0#0"), two, verdict(3, "W1_0#0", "W2_0#0", "W1_1#0")) == [first]
    assert warnings_of(two, verdict(3, "W1_0#0", "W2_0#0", "W1_1#0", "W2_1#0")) == [first, then]


def test_of_stages_that_one_death_leaves_with_one_live_server_one_line_is_said():
    lost = verdict(1, "W1_0#0", "W1_1#0", "W2_0#0", "W2_1#0")
    assert warnings_of(lost) == ["one live server is left of stages 0, 1: if W0_0 or W0_1 dies, the run ends"]


def test_it_is_said_again_where_a_server_came_back_and_died_again():
    lost, back = verdict(1, "W1_0#0", "W2_0#0"), verdict(2, "W1_0#0")
    assert len(warnings_of(lost, back, verdict(3, "W1_0#0", "W2_0#0"))) == 2


def test_nothing_is_said_where_memory_has_copies_or_where_nobody_died():
    lost = verdict(1, "W1_0#0", "W2_0#0")
    assert warnings_of(lost, last_death=str) == []
    assert warnings_of(Verdict(1, EVERYBODY[:3], step=7, plan=FIRST)) == []
