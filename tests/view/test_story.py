import pytest

from harness.examples import QUICK, paper_plan, uneven_job
from recycle.plan.document import save_plan
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.record.history import History
from recycle.record.planned import timeline
from recycle.record.speeds import LEAST
from recycle.view.panel import Story, make_panels, story_of
from recycle.view.subject import Subject, load_subject, subject_of
from tests.view.disturbed import DEATH, write_disturbed


@pytest.fixture
def run(tmp_path):
    return write_disturbed(tmp_path / "run")


def test_a_plan_has_no_story():
    [panel] = make_panels([subject_of(paper_plan(), "plan")], "stage")
    assert panel.story == Story()


def test_losses_stand_where_their_iterations_end(run):
    [panel] = make_panels([load_subject(run)], "stage")
    loss, throughput = panel.story.curves
    assert loss.values == (4.0, 3.0, 2.0, 1.0)
    assert loss.steps == throughput.steps == (0, 1, 2, 3)
    ends = {each.iteration: each.end for each in panel.chart.windows}
    assert all(time >= ends[step] for time, step in zip(loss.times, loss.steps, strict=True))
    assert throughput.unit == "iterations/s"
    assert throughput.values == pytest.approx([1 / 0.03] * 4)


def test_a_loss_that_is_not_finite_is_left_out_of_its_curve_alone(run):
    for file in (run / "events").iterdir():
        file.write_bytes(file.read_bytes().replace(b'"losses":[3.0', b'"losses":[null'))
    [panel] = make_panels([load_subject(run)], "stage")
    loss, throughput = panel.story.curves
    assert (loss.values, loss.steps, len(loss.times)) == ((4.0, 2.0, 1.0), (0, 2, 3), 3)
    assert throughput.steps == (0, 1, 2, 3)


def test_a_run_that_has_its_plan_knows_what_it_may_hold(run):
    save_plan(paper_plan(), run / "plan.json")
    [panel] = make_panels([load_subject(run)], "stage")
    assert {row.limit for row in panel.chart.rows()} == {4}
    assert max(row.peak for row in panel.chart.rows()) == 4
    assert panel.story.curves[1].unit == "micro-batches/s"


def test_the_last_iterations_keep_their_losses_and_leave_out_what_was_before(run):
    [panel] = make_panels([load_subject(run, 2)], "stage")
    loss, _ = panel.story.curves
    assert loss.steps == (2, 3)
    assert loss.values == (2.0, 1.0)
    assert 0 < loss.times[0] < loss.times[1] <= panel.chart.end
    assert not any("died" in text for _, text in panel.story.events)


def test_events_stand_at_their_times(run):
    [panel] = make_panels([load_subject(run)], "stage")
    died = next(time for time, text in panel.story.events if text.startswith("W1_2 died"))
    assert died == pytest.approx(DEATH - panel.timeline.origin)


def test_slow_servers_are_named_at_the_end():
    line = timeline(make_plan(uneven_job(50), (), Mode(), QUICK), LEAST)
    story = story_of(Subject("run", None, line, history=History()))
    assert story.summary == ("W1_1 computes at 50% of its peers' speed, in the median of 5 iterations",)
