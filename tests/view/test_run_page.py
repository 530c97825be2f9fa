"""Runs on the page in a real browser: beside their plan, with deaths and returns, and by night."""

import re
import time
from contextlib import contextmanager

import msgspec
import pytest

from harness.examples import paper_plan
from harness.started import wait_until
from recycle.cli.watch import watch_run
from recycle.plan.document import save_plan
from recycle.record.planned import timeline
from recycle.record.recording import DeathLine, ProcessLine, ViewLine
from recycle.view.chart import make_chart
from recycle.view.compare import compare
from recycle.view.html import page
from recycle.view.panel import Panel, make_panels
from recycle.view.subject import Subject, load_subject
from tests.record.test_following import append
from tests.view.disturbed import DEATH, VICTIM, VIEW, without_last_words, write_disturbed
from tests.view.pages import (
    BACK,
    DARK_PAUSE,
    FORWARD,
    IN_A_BROWSER,
    LOST,
    PAUSE,
    colours,
    move,
    move_to,
    press,
    served,
    settle,
    tip,
    written,
)
from tests.view.samples import chart_of, measured

pytestmark = IN_A_BROWSER


def test_a_run_below_its_plan_on_one_time_axis(open_page):
    plan = paper_plan()
    run = measured(plan)
    line = timeline(plan, 2)
    comparison = compare(line, run)
    shown = open_page(
        Panel("plan", chart_of(plan, 2), line),
        Panel("run", make_chart(Subject("run", None, run)), run, comparison),
    )
    one = shown.execute_script("return schedule.place('2F1.3', 0)")
    other = shown.execute_script("return schedule.place('2F1.3', 1)")
    assert other["y"] > one["y"]
    move(shown, "2F1.3", panel=1)
    assert " ms" in tip(shown)


def test_a_death_a_recovery_and_a_rejoin_are_seen_and_say_what_they_were(open_page, tmp_path):
    subject = load_subject(write_disturbed(tmp_path / "run"))
    shown = open_page(Panel("run", make_chart(subject), subject.timeline))
    seen = colours(shown)
    assert seen[LOST] > 500
    assert seen[BACK] > 50
    assert seen[PAUSE] > 5000
    move_to(shown, "W1_2", DEATH + 40_000)
    assert tip(shown) == "W1_2\nW1_2 was killed by signal 9 (SIGKILL)"
    move_to(shown, "W0_0", DEATH + 2000)
    assert tip(shown) == "W0_0\ninto view 1 in 5.6 ms: agree 2.1 ms, rebuild 1.5 ms, restore 700 us, start 1.3 ms"
    move_to(shown, "W1_2", VIEW)
    assert "view 1: 11 servers, planned throughput 100% of fault-free 1F1B, the catalogue; W1_2 was killed" in tip(
        shown
    )
    move_to(shown, "W0_0", DEATH - 11_000)
    assert tip(shown).startswith("W0_0\nidle from 38 ms to 41 ms")


def test_a_run_has_its_loss_its_throughput_and_its_story(open_page, tmp_path):
    subject = load_subject(write_disturbed(tmp_path / "run"))
    [panel] = make_panels([subject], "stage")
    shown = open_page(panel)
    texts = written(shown)
    assert {"loss", "throughput", "4", "1"} <= set(texts)
    summary = shown.find_element("css selector", "details.events summary")
    assert summary.text.startswith("1 failure, 1 rejoin, 1 iteration made again; recovered in 6 ms")
    summary.click()
    settle(shown)
    events = shown.find_element("css selector", "details.events ol").text
    assert "50 msW1_2 died: was killed by signal 9 (SIGKILL), noticed by its agent" in events
    before = shown.execute_script("return schedule.place('2F1.3', 0, 1)")
    shown.find_elements("css selector", "details.events button")[0].click()
    settle(shown)
    after = shown.execute_script("return schedule.place('2F1.3', 0, 1)")
    assert after["width"] >= before["width"]


def test_an_iteration_that_is_made_again_is_apart_from_what_was_left_of_it(open_page, tmp_path):
    subject = load_subject(write_disturbed(tmp_path / "run"))
    shown = open_page(Panel("run", make_chart(subject), subject.timeline))
    # The victim began 2F1.0 at 36000; what it waited for and who waited for it are of the same view.
    move_to(shown, "W1_2", 36_500)
    text = tip(shown)
    assert text.startswith("2F1.0 on W1_2")
    assert "iteration 2\nvoid: the iteration was given up, and made again in a later view" in text
    assert "waits for 1F1.0 on W1_1 (until 36 ms)" in text
    assert "awaited by 2I1.0 on W1_2 (at 39 ms), 3F1.0 on W1_3 (at 37 ms)" in text


def test_work_that_a_death_made_void_is_called_so_and_not_idle(open_page, tmp_path):
    subject = load_subject(write_disturbed(tmp_path / "run"))
    line = without_last_words(subject.timeline)
    chart = make_chart(msgspec.structs.replace(subject, timeline=line))
    shown = open_page(Panel("run", chart, line))
    victim = next(row for row in chart.rows() if row.server == VICTIM)
    ((last, death),) = victim.unrecorded
    move_to(shown, "W1_2", (last + death) / 2)
    assert "void from" in tip(shown)
    assert "what it computed died with it" in tip(shown)
    # A survivor has nothing more to do between its last instruction and the end of the view.
    survivor = next(row for row in chart.rows() if str(row.server) == "W0_0")
    gap = max(survivor.spans[place].end for place in survivor.void), survivor.recoveries[0].noticed
    move_to(shown, "W0_0", sum(gap) / 2)
    assert "the view ended: what it would have done next" in tip(shown)
    assert "memory or the order" not in tip(shown)
    assert "void: made again after a failure" in shown.find_element("id", "legend").text


def test_dark_theme(browser, tmp_path):
    plan = paper_plan()
    path = tmp_path / "page.html"
    path.write_text(page([Panel("plan", chart_of(plan), timeline(plan))]))
    subject = load_subject(write_disturbed(tmp_path / "run"))
    disturbed = tmp_path / "disturbed.html"
    disturbed.write_text(page([Panel("run", make_chart(subject), subject.timeline)]))
    browser.get(path.as_uri())
    with width(browser, 1300, dark=True):
        seen = colours(browser)
        assert max(seen, key=seen.get)[0] < 0x40
        assert seen[FORWARD] > 1000
        browser.get(disturbed.as_uri())
        seen = colours(browser)
        assert seen[DARK_PAUSE] > 5000
        assert PAUSE not in seen
        assert browser.get_log("browser") == []


OUTSIDE = """
return [...document.querySelectorAll('body :not(legend)')].filter((each) => {
  const box = each.getBoundingClientRect();
  return each.checkVisibility() && box.width && (box.left < -1 || box.right > innerWidth + 1);
}).map((each) => each.outerHTML.slice(0, 80));
"""
SIZED = """
const light = (colour) => {
  const [red, green, blue] = colour.match(/[\\d.]+/g).map((each) => each / 255)
    .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const ground = (place) => {
  const colour = getComputedStyle(place).backgroundColor;
  return colour === 'rgba(0, 0, 0, 0)' ? ground(place.parentElement) : colour;
};
return [...document.querySelectorAll('body *')].filter((place) => {
  const own = place.placeholder || [...place.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
  if (!own || !place.checkVisibility() || ['SCRIPT', 'OPTION', 'LEGEND'].includes(place.tagName)) return false;
  const style = getComputedStyle(place, place.placeholder ? '::placeholder' : null);
  const [one, other] = [light(place.ownerSVGElement ? style.fill : style.color), light(ground(place))].sort();
  return parseFloat(style.fontSize) < 11 || (other + 0.05) / (one + 0.05) < 4.5;
}).map((place) => place.outerHTML.slice(0, 80));
"""
SMALL = """
window.fonts = new Set(); const pen = CanvasRenderingContext2D.prototype; const write = pen.fillText;
pen.fillText = function (...given) { fonts.add(parseFloat(this.font.match(/[0-9.]+px/))); write.apply(this, given); };
document.getElementById('fit').click();
const done = arguments[0];
requestAnimationFrame(() => requestAnimationFrame(() => {
  pen.fillText = write;
  done([...fonts].filter((each) => each < 11));
}));
"""
UNREACHED = """
return [...document.querySelectorAll('body *')].filter((each) => {
  const scrolls = ['auto', 'scroll'].includes(getComputedStyle(each).overflowY);
  const cut = scrolls && each.scrollHeight > each.clientHeight + 1;
  return (cut || each.onclick) && each.tabIndex < 0;
}).map((each) => each.outerHTML.slice(0, 80));
"""


@contextmanager
def width(browser, pixels, dark=False):
    """Of the page, which no window of the browser can be as narrow as."""
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    size = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    settle(browser)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.fixture
def run(tmp_path):
    """A run whose folder has a long name, and whose launcher says when its clock began."""
    folder = write_disturbed(tmp_path / f"a_run_{'with_a_long_name_' * 5}")
    save_plan(paper_plan(failed=()), folder / "plan.json")
    append(folder / "events" / "launcher.jsonl", ProcessLine("launcher", 1, "here", zero=1.7e9))
    return folder


@pytest.fixture
def shown(browser, run):
    """Its page."""
    with served(watch_run(run)) as server:
        browser.get(server.url)
        count = "return document.getElementById('servers')?.querySelectorAll('strong').length"
        wait_until(lambda: browser.execute_script(count) == 12)
        yield browser
        browser.get("about:blank")


def test_nothing_of_a_watched_run_is_cut_off_at_any_width_and_the_keyboard_scrolls_it(shown):
    assert "live, memory 4/" in shown.execute_script("return document.getElementById('servers').innerText")
    failure = shown.execute_script("return document.querySelector('#news .failure').innerText")
    assert re.match(rf"[0-9.]+ m?s\n{time.strftime('%Y-%m-%d', time.localtime(1.7e9))} ..:..:..\nW1_2 died", failure)
    shown.execute_script("document.getElementById('help').open = true")
    for pixels in (400, 800, 1400):
        for dark in (False, True):
            with width(shown, pixels, dark):
                assert shown.execute_script(OUTSIDE) == []
                assert shown.execute_script("return document.documentElement.scrollWidth") == pixels
                assert shown.execute_script(UNREACHED) == []
                assert shown.execute_script(SIZED) == []
                assert shown.execute_async_script(SMALL) == []
                assert shown.execute_script("return document.getElementById('plot').clientHeight") > 250


def test_a_page_of_another_size_shows_all_of_the_time_again_and_its_address_does_not_keep_it(shown):
    ends = """
    const { left, right } = document.getElementById('plot').getBoundingClientRect();
    return [left < schedule.moment('W0_0', 0).x, schedule.moment('W0_0', 1e5).x < right];
    """
    for pixels in (1400, 400, 30, 800):
        with width(shown, pixels):
            assert pixels < 100 or shown.execute_script(ends) == [True, True]
    assert "from=" not in shown.current_url
    shown.execute_script("schedule.zoom(0.5)")
    wait_until(lambda: "from=" in shown.current_url)


def test_a_watched_run_is_called_as_its_folder_and_says_when_its_time_line_begins(shown, run):
    head = shown.find_element("id", "head").text
    assert head.startswith(run.name)
    assert "from\n0.034 s after the run's begin" in head


def test_a_box_says_which_iteration_of_the_run_it_is_of(shown):
    shown.execute_script("schedule.find('0F0.0')")
    assert "\niteration 2\n" in tip(shown)


def test_keys_scroll_what_has_the_focus_and_the_time_line_only_there(shown):
    from selenium.webdriver.common.keys import Keys

    with width(shown, 800):
        log = shown.find_element("id", "news")
        shown.execute_script("arguments[0].style.maxHeight = '3em'", log)
        below = "return arguments[0].scrollHeight - arguments[0].scrollTop - arguments[0].clientHeight"
        log.send_keys(Keys.END)
        wait_until(lambda: shown.execute_script(below, log) < 1)
        log.send_keys(Keys.ARROW_UP)
        wait_until(lambda: shown.execute_script(below, log) > 1)
        assert tip(shown) == ""
        press(shown, Keys.ARROW_DOWN)
        assert "on W0_0" in tip(shown)


def test_what_is_said_already_stays_when_a_run_goes_on(shown, run):
    shown.execute_script("window.known = [...document.querySelectorAll('#news > div')]")
    shown.execute_script("getSelection().selectAllChildren(document.querySelector('#news .failure'))")
    left = [str(each) for each in paper_plan().job.servers()[1:]]
    death = DeathLine("W0_0", 0, 164_000.0, "was killed by hand", "agent", 3)
    view = ViewLine(3, 165_000.0, left, [], 4, "W0_0 was killed by hand", "memory", 30, 0.9, "the catalogue")
    for line in (death, view):
        append(run / "events" / "launcher.jsonl", line)
    wait_until(lambda: "view 3" in shown.find_element("id", "news").text)
    assert shown.execute_script("return known.every((each) => each.isConnected)")
    assert "W1_2 died" in shown.execute_script("return getSelection().toString()")
    assert "2" in shown.find_element("id", "live-failures").text
    # The iteration that it interrupted is not made yet.
    assert shown.execute_script("return document.querySelectorAll('#curves svg .failure').length") == 4


@pytest.mark.parametrize("spoilt", [(b"1.0",), (b"4.0", b"3.0", b"2.0", b"1.0")], ids=["the last", "all"])
def test_losses_that_are_not_finite_leave_the_rest_of_the_page_as_it_is(browser, run, spoilt):
    for file in (run / "events").iterdir():
        content = file.read_bytes()
        for loss in spoilt:
            content = content.replace(b'"losses":[' + loss, b'"losses":[null')
        file.write_bytes(content)
    with served(watch_run(run)) as server:
        browser.get(server.url)
        wait_until(lambda: browser.find_elements("css selector", "#curves polyline"))
        assert "loss not finite" in browser.find_element("id", "figures").text
        loss, throughput = (each.text for each in browser.find_elements("css selector", "#curves svg"))
        assert ("never finite" in loss) == (len(spoilt) == 4)
        assert ("iteration 3" in loss) == (len(spoilt) == 1)
        assert "iteration 4" in throughput
        assert "W1_2 died" in browser.find_element("id", "news").text
        assert browser.get_log("browser") == []
        browser.get("about:blank")


def test_before_a_run_begins_no_place_is_empty_without_a_word(browser, tmp_path):
    with served(watch_run(tmp_path / "none yet")) as server:
        browser.get(server.url)
        wait_until(lambda: browser.find_elements("id", "live-state"))
        assert "no iteration is recorded yet" in written(browser)
        assert "waiting for a run to begin here" in browser.find_element("id", "figures").text
        assert browser.find_element("id", "curves").text.count("no iteration is finished yet") == 2
        assert browser.find_element("id", "news").text == "nothing has happened yet"
        browser.get("about:blank")


def test_the_dead_have_another_colour_than_the_live(browser, tmp_path):
    folder = write_disturbed(tmp_path / "run")
    save_plan(paper_plan(failed=()), folder / "plan.json")
    for file in (folder / "events").iterdir():
        # As it was before the return.
        file.write_bytes(b"".join(line for line in file.read_bytes().splitlines(True) if b'"epoch":2' not in line))
    with served(watch_run(folder)) as server:
        browser.get(server.url)
        wait_until(lambda: browser.execute_script("return document.querySelectorAll('#servers .dead').length") == 1)
        shown = {
            browser.execute_script("return getComputedStyle(arguments[0]).borderLeftColor", each)
            for each in browser.execute_script("return [...document.querySelectorAll('#servers > div > span')]")
        }
        assert shown == {"rgb(46, 139, 87)", "rgb(193, 18, 31)"}
