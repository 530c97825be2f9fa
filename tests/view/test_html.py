import base64
import json
from array import array

import msgspec
import pytest

from recycle.record.planned import timeline
from recycle.view.chart import make_chart
from recycle.view.compare import compare
from recycle.view.html import OPS, page
from recycle.view.panel import Panel
from recycle.view.subject import Subject, subject_of
from tests.view.samples import SCRIPT, chart_of, measured


def data_of(text):
    start = text.index('<script type="application/json" id="data">')
    start = text.index(">", start) + 1
    return json.loads(text[start : text.index("</script>", start)])


def numbers(text, code):
    return list(array(code, base64.b64decode(text)))


def page_of(plan, iterations=1):
    return page([Panel("plan", chart_of(plan, iterations), timeline(plan, iterations))])


def test_the_page_asks_for_nothing_from_a_network(staggered):
    # Names of forms of XML and places within a picture are no addresses.
    text = page_of(staggered).replace("http://www.w3.org", "").replace("url(#", "")
    for sign in ("http:", "https:", "src=", "@import", "url("):
        assert sign not in text


def test_the_columns_hold_every_span(staggered):
    chart = chart_of(staggered, 2)
    panel = data_of(page_of(staggered, 2))["panels"][0]
    spans = [span for row in chart.rows() for span in row.spans]
    boxes = panel["boxes"]
    assert [OPS[code] for code in numbers(boxes["op"], "B")] == [span.instruction.op for span in spans]
    assert numbers(boxes["home"], "i") == [span.instruction.home for span in spans]
    assert numbers(boxes["microBatch"], "i") == [span.instruction.micro_batch for span in spans]
    assert numbers(boxes["iteration"], "i") == [span.iteration for span in spans]
    assert numbers(boxes["start"]["data"], boxes["start"]["type"]) == [span.start for span in spans]
    assert numbers(boxes["end"]["data"], boxes["end"]["type"]) == [span.end for span in spans]
    assert sum(row["boxes"] for row in panel["rows"]) == len(spans)


def test_whole_times_are_stored_small_and_measured_ones_exactly(staggered):
    run = measured(staggered)
    text = page([Panel("run", make_chart(Subject("run", None, run)), run)])
    assert data_of(text)["panels"][0]["boxes"]["start"]["type"] == "d"
    assert data_of(page_of(staggered))["panels"][0]["boxes"]["start"]["type"] == "i"


def test_names_from_files_stay_text(staggered):
    name = SCRIPT + "</script><!-- $data"
    plan = msgspec.structs.replace(staggered, job=msgspec.structs.replace(staggered.job, name=name))
    text = page_of(plan)
    assert text.count("<script") == 2
    assert text.count("</script") == 2
    assert "<!--" not in text
    assert data_of(text)["panels"][0]["title"].startswith(name)


def test_figures_are_at_the_head(worked):
    _, plan = worked
    facts = dict(data_of(page_of(plan))["panels"][0]["facts"])
    assert facts.keys() >= {"period", "bound", "gap", "throughput", "bubble"}
    assert facts["period"].startswith(f"{plan.period} slots")


@pytest.mark.parametrize("other", ["plan", "run"])
def test_the_second_panel_knows_what_differs(fused, staggered, other):
    first = timeline(staggered)
    second = timeline(fused) if other == "plan" else measured(staggered)
    subject = subject_of(fused, "fused") if other == "plan" else Subject("run", None, second)
    comparison = compare(first, second)
    panels = [Panel("a", chart_of(staggered), first), Panel("b", make_chart(subject), second, comparison)]
    data = data_of(page(panels))
    changes = numbers(data["panels"][1]["changes"], "B")
    assert any(changes) == (other == "plan")
    assert data["panels"][1]["pace"] == comparison.pace
