import re
from xml.etree import ElementTree

import msgspec
import pytest

from recycle.errors import UserError
from recycle.view.chart import make_chart
from recycle.view.subject import Subject
from recycle.view.svg import draw
from scripts.make_figures import pictures
from tests.view.samples import SCRIPT, chart_of, measured

NAMESPACE = {"svg": "http://www.w3.org/2000/svg"}


def boxes(text):
    return ElementTree.fromstring(text).findall(".//svg:g[@class='box']", NAMESPACE)


def test_the_pictures_of_the_documentation_are_what_the_schedules_give():
    for path, content in pictures().items():
        assert path.read_text() == content, f"{path.name} differs; if that is meant, run scripts/make_figures.py"


def test_every_box_has_a_title_and_work_is_drawn_once(worked):
    _, plan = worked
    titles = [box.find("svg:title", NAMESPACE).text for box in boxes(draw([chart_of(plan)]))]
    assert len(titles) == len(set(titles))
    compute = sum(each.op.is_compute for program in plan.programs.values() for each in program)
    assert len(titles) == compute + len(plan.programs)


def test_names_from_files_are_escaped(staggered):
    plan = msgspec.structs.replace(staggered, job=msgspec.structs.replace(staggered.job, name=SCRIPT))
    text = draw([chart_of(plan)])
    assert "<script" not in text
    assert SCRIPT in "".join(ElementTree.fromstring(text).itertext())


def test_two_schedules_stand_below_each_other_on_one_time_axis(staggered):
    run = measured(staggered)
    charts = [chart_of(staggered), make_chart(Subject("run", None, run))]
    picture = ElementTree.fromstring(draw(charts, [1.0, 12.5]))
    places = {each.text: float(each.get("y")) for each in picture.findall("svg:text", NAMESPACE)}
    first, second = (places[chart.title] for chart in charts)
    boxes_of_second = [
        each for each in picture.findall(".//svg:g/svg:rect", NAMESPACE) if float(each.get("y")) > second
    ]
    assert second > first
    assert len(boxes_of_second) > len(run.spans) / 2


def test_a_picture_that_nobody_can_look_at_is_refused_with_a_number_of_iterations_that_fits(staggered):
    with pytest.raises(UserError, match=r"--iterations \d+") as error:
        draw([chart_of(staggered, iterations=120)])
    draw([chart_of(staggered, iterations=int(re.search(r"--iterations (\d+)", str(error.value))[1]))])


def test_one_very_short_instruction_does_not_make_a_picture_wide(staggered):
    run = measured(staggered)
    first = next(place for place, span in enumerate(run.spans) if span.instruction.op.is_compute)
    short = msgspec.structs.replace(run.spans[first], end=run.spans[first].start + 1e-3)
    run = msgspec.structs.replace(run, spans=(*run.spans[:first], short, *run.spans[first + 1 :]))
    width = int(ElementTree.fromstring(draw([make_chart(Subject("run", None, run))])).get("width"))
    assert width < 4000
