"""Views of plans whose servers hold several chunks."""

import pytest

from harness.examples import QUICK
from recycle.job import Job, Stage
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.planned import timeline
from recycle.view import chrome_trace, html, svg
from recycle.view.chart import make_chart
from recycle.view.panel import Panel
from recycle.view.subject import subject_of
from tests.view.test_chrome_trace import check, events_of


@pytest.fixture(scope="module")
def plan():
    stage = Stage(2, 2, 2, 1, 1, 1, 0, 4)
    job = Job(2, 3, (stage,) * 4, (1,) * 3, placement=((0, 3), (1, 2)))
    return make_plan(job, [job.servers()[3]], Mode(), QUICK)


def test_a_time_line_has_the_updates_of_every_chunk(plan):
    line = timeline(plan, 2)
    for server in plan.programs:
        drawn = [str(span.instruction) for span in line.spans if span.server == server and span.lane == "compute"]
        planned = [str(each) for each in plan.programs[server] if not each.op.is_transfer]
        assert drawn == planned * 2
    assert {each.text for each in line.instants if each.kind == "optimizer step"} == {
        f"chunk {chunk} has stepped" for chunk in range(4)
    }


def test_a_trace_has_a_slice_for_every_transfer(plan):
    events = events_of(subject_of(plan, "plan"))
    check(events)
    sends = sum(each.op.is_send for program in plan.programs.values() for each in program)
    assert sum(event.get("cat", "").startswith("SEND") for event in events) == sends


def test_every_view_can_draw_it(plan):
    subject = subject_of(plan, "plan")
    panel = Panel(subject.name, make_chart(subject), subject.timeline)
    for view in (svg, html, chrome_trace):
        assert view.encode([panel])
    limits = {row.limit for row in panel.chart.rows()}
    assert limits == {4}
