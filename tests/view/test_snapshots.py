"""Every view draws the copies that a plan makes of its state."""

import json

import pytest

from recycle.plan.instruction import Op
from recycle.plan.plan import Copies
from recycle.planner.copying import add_copies
from recycle.record.planned import timeline
from recycle.view.html import document_of
from recycle.view.panel import Panel
from recycle.view.subject import subject_of
from recycle.view.svg import draw as draw_svg
from recycle.view.terminal import draw as draw_terminal
from recycle.view.terminal import listing
from recycle.view.trace import encode
from tests.view.samples import chart_of, small


@pytest.fixture(scope="module")
def plan():
    return add_copies(small(pipelines=2, stages=2, micro_batches=2), Copies(2, 1, 1, 1))


def test_a_terminal_has_a_letter_of_its_own_for_them(plan):
    text = "\n".join(line.plain for line in draw_terminal([chart_of(plan)], 100, "none")[0])
    rows = [line for line in text.splitlines() if line.startswith("W")]
    assert all("C0" in row and "C1" in row for row in rows)
    assert " C SNAP " in text
    lines = list(listing(subject_of(plan, "plan")))
    assert {"W0_0 0SNAP1", "W0_0 0SEND_S1>W0_1", "W0_0 0RECV_S1<W0_1"} <= set(lines)


def test_pictures_have_a_box_for_each_piece(plan):
    picture = draw_svg([chart_of(plan)])
    assert picture.count("copy of state to host memory, ") == 2 * len(plan.programs)


def test_the_page_and_the_trace_say_which_piece_it_is(plan):
    subject = subject_of(plan, "plan")
    panel = Panel(subject.name, chart_of(plan), subject.timeline)
    page = document_of([panel])
    assert [op["name"] for op in page["ops"] if op["copy"]] == ["SNAP", "SEND_S", "RECV_S"]
    slices = [each for each in json.loads(encode([panel], None))["traceEvents"] if each["ph"] == "X"]
    sent = sorted(each["args"]["piece"] for each in slices if each["name"] == "SEND_S")
    assert sent == [0] * len(plan.programs) + [1] * len(plan.programs)


def test_windows_begin_with_what_is_computed(plan):
    first = min(span.start for span in timeline(plan).spans if span.instruction.op is Op.F)
    assert chart_of(plan).windows[0].start == first
