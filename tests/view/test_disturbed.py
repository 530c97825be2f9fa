"""A run with a death and a rejoin in every view: the lane of the dead, the bands of the others, the marks of views."""

import json
import math
from xml.etree import ElementTree as Xml

import msgspec
import pytest

from recycle.record.reading import load_recording
from recycle.record.recording import InstantLine
from recycle.record.timeline import Outage
from recycle.view.chart import make_chart
from recycle.view.compare import compare
from recycle.view.subject import load_subject
from recycle.view.svg import draw as draw_svg
from recycle.view.terminal import draw as draw_terminal
from tests.view.disturbed import DEATH, REJOIN, RESUMED, VICTIM, VIEW, without_last_words, write_disturbed
from tests.view.test_chrome_trace import check, events_of

TEXT = "W1_2 was killed by signal 9 (SIGKILL)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_disturbed(tmp_path_factory.mktemp("runs") / "disturbed")


@pytest.fixture(scope="module")
def subject(folder):
    return load_subject(folder)


@pytest.fixture(scope="module")
def chart(subject):
    return make_chart(subject)


def test_the_time_line_has_one_outage_two_views_and_a_pause_per_survivor(subject):
    line = subject.timeline
    assert line.outages == {VICTIM: (Outage(DEATH, REJOIN, TEXT),)}
    assert line.views == (VIEW, REJOIN)
    assert line.failed == ()
    assert len(line.recoveries) == 22
    assert {each.server for each in line.recoveries} == {str(span.server) for span in line.spans} - {str(VICTIM)}
    assert line.iterations == 4


def test_the_lives_of_a_server_share_its_row(chart):
    row = next(row for row in chart.rows() if row.server == VICTIM)
    assert not row.dead
    assert {span.iteration for span in row.spans} == {0, 1, 3}
    assert len(list(chart.rows())) == 12
    assert [view.name for view in chart.views] == ["view 1", "view 2"]


@pytest.mark.parametrize(
    ("count", "outages", "views"), [(1, 0, 0), (2, 1, 1), (3, 1, 2), (4, 1, 2)], ids=["1", "2", "3", "4"]
)
def test_the_last_iterations_know_who_is_dead_and_what_was_interrupted(folder, count, outages, views):
    line = load_recording(folder).last(count)
    assert line.iterations == count
    assert min(span.start for span in line.spans) == 0
    assert len(line.outages) == outages
    assert len(line.views) == views
    assert all(outage.start >= 0 for each in line.outages.values() for outage in each)


def test_who_died_before_the_last_iterations_and_stays_dead_is_known(folder):
    line = load_recording(folder)
    dead = [each for each in line.instants if each.kind != "rejoin"]
    last = msgspec.structs.replace(line, instants=tuple(dead)).last(1)
    assert last.outages[VICTIM] == (Outage(0, math.inf, TEXT),)


def test_what_a_death_made_void_is_counted_as_that_and_not_as_idle(chart, subject):
    rows = {row.server: row for row in chart.rows()}
    for row in rows.values():
        gone = [row.spans[place] for place in sorted(row.void)]
        assert all(span.iteration == 1 and span.end <= DEATH for span in gone)
        assert {
            place for place, span in enumerate(row.spans) if span.start < RESUMED and span.iteration == 1
        } == row.void
        assert row.wasted == sum(span.end - span.start for span in gone) + sum(b - a for a, b in row.unrecorded)
        busy = sum(span.end - span.start for span in row.spans) - sum(span.end - span.start for span in gone)
        assert row.busy == pytest.approx(busy / 4)
        begin = min(span.start for each in rows.values() for span in each.spans)
        assert row.bubble == pytest.approx(1 - (busy + row.wasted) / (chart.end - begin))
        assert 0 < row.bubble < 1
    assert rows[VICTIM].void
    assert dict(chart.facts)["void work"].startswith("162 ms")
    # A window of an iteration that was made again is that of the last time.
    assert all(window.start >= RESUMED for window in chart.windows if window.iteration == 1)


def test_what_the_victim_did_from_its_last_line_to_its_death_is_void_and_not_recorded(subject):
    line = without_last_words(subject.timeline)
    chart = make_chart(msgspec.structs.replace(subject, timeline=line))
    row = next(row for row in chart.rows() if row.server == VICTIM)
    assert row.void == frozenset()
    assert row.unrecorded == ((max(span.end for span in row.spans if span.iteration == 0), DEATH),)
    assert row.wasted == DEATH - row.unrecorded[0][0]


def test_a_checkpoint_makes_what_was_finished_void_too(subject):
    back = InstantLine("view change", 200_000.0, None, "view 3", 2)
    line = msgspec.structs.replace(subject.timeline, instants=(*subject.timeline.instants, back))
    void = line.void
    assert {span.iteration for span in line.spans if void.has(span)} == {1, 2, 3}
    assert {span.iteration for span in line.spans if not void.has(span)} == {0, 1}
    # The last one is that which still counts, with what was begun of it and behind it.
    last = line.last(1)
    assert (last.first, {span.iteration for span in last.spans if not last.void.has(span)}) == (1, {0})
    assert {span.iteration for span in last.spans if last.void.has(span)} == {0, 1}


def test_in_the_terminal(chart, golden):
    text = "".join(f"{line.plain.rstrip()}\n" for line in draw_terminal([chart], 400, color=False)[0])
    golden("view/disturbed.txt", text)


def test_in_a_picture_the_outage_and_the_pauses_stand_where_they_were(chart):
    picture = Xml.fromstring(draw_svg([chart]))
    space = {"svg": "http://www.w3.org/2000/svg"}
    (outage,) = picture.findall(".//svg:g[@class='outage']", space)
    assert outage.find("svg:title", space).text == TEXT
    pauses = picture.findall(".//svg:g[@class='pause']", space)
    assert len(pauses) == 22
    assert (
        pauses[0].find("svg:title", space).text
        == "W0_0 into view 1 in 5.6 ms: agree 2.1 ms, rebuild 1.5 ms, restore 700 us, start 1.3 ms"
    )
    white = outage.find("svg:rect", space)
    band = pauses[0].find("svg:rect", space)
    scale = float(band.get("width")) / (RESUMED - DEATH - 900)
    assert float(white.get("width")) == pytest.approx((REJOIN - DEATH) * scale, rel=0.01)
    assert float(band.get("x")) - float(white.get("x")) == pytest.approx(900 * scale, rel=0.05)
    texts = {each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"view 1", "view 2", "changes views"} <= texts


def test_a_trace_has_the_events_and_the_recoveries(subject):
    events = events_of(subject)
    check(events)
    kinds = [event["cat"] for event in events if event["ph"] == "i"]
    assert sorted(kinds) == ["failure", "rejoin", "view change", "view change"]
    slices = [event for event in events if event.get("cat") == "recovery"]
    assert {event["name"] for event in slices} == {"agree", "rebuild", "restore", "start"}


def test_what_was_interrupted_is_not_compared(subject):
    comparison = compare(subject.timeline, subject.timeline)
    assert (dict(comparison.changes), comparison.missing) == ({}, 0)


def test_the_terminal_says_what_happened_in_the_run_and_who_writes_a_page_reads_a_summary(
    ran, folder, tmp_path, golden
):
    page = tmp_path / "run.html"
    told = ran("show", folder).splitlines()[-11:]
    golden("view/disturbed-history.txt", "\n".join([*told, ""]))
    assert ran("show", folder, "--html", page).splitlines() == [f"written to {page}", *told[-6:]]


def test_as_json(run, folder):
    summary = json.loads(run("show", folder, "--json")[1])[0]
    assert summary["deaths"][0]["server"] == "W1_2"
    assert [change["view"]["epoch"] for change in summary["changes"]] == [1, 2]
    assert summary["changes"][0]["recovery"]["began"] == DEATH
    assert summary["costs"][0]["lost"] == summary["changes"][0]["recovery"]["lost"] == DEATH - 34_000
