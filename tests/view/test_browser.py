"""The page in a real browser: load, hover, follow, toggle, zoom, keys, and no error in its console."""

import io

import pytest

from harness.examples import paper_plan
from recycle.record.planned import timeline
from recycle.view.panel import Panel
from tests.view import pages
from tests.view.pages import CRITICAL, FORWARD, LOST, MEMORY, STEP, colours, move, move_to, press, settle, tip, written
from tests.view.samples import DEAD, chart_of, small

pytestmark = pages.IN_A_BROWSER


@pytest.fixture(scope="module")
def plan():
    return paper_plan()


@pytest.fixture
def shown(open_page, plan):
    return open_page(Panel("plan", chart_of(plan), timeline(plan)))


def test_the_head_and_the_first_drawing(shown, plan):
    head = shown.find_element("id", "head").text
    for text in ("period", "30 slots", "bound", "gap", "throughput", "bubble", "W1_2"):
        assert text in head
    seen = colours(shown)
    assert seen[FORWARD] > 1000
    assert seen[STEP] > 1000


def test_every_stage_says_when_it_takes_which_iteration(open_page, plan):
    browser = open_page(Panel("plan", chart_of(plan, 2), timeline(plan, 2)))
    texts = written(browser)
    for iteration in (1, 2):
        assert [each for each in texts if each.startswith(f"iteration {iteration}: ")] == [
            f"iteration {iteration}: {length} slots" for length in (27, 25, 30, 22)
        ]


def test_the_legend_has_the_signs_of_the_page(shown):
    legend = shown.find_element("id", "legend").text
    assert "re-routed" in legend
    assert "dead server" in legend
    assert "a new view" not in legend


def test_hovering_says_what_a_box_waits_for_and_who_waits_for_it(shown, plan):
    before = colours(shown)
    move(shown, "2F1.3")
    text = tip(shown)
    assert text.startswith("2F1.3 on W")
    assert "re-routed from pipeline 1" in text
    assert "waits for 1F1.3 on W1_1" in text
    assert "3F1.3 on W1_3" in text
    assert colours(shown) != before


def test_a_click_follows_a_micro_batch_and_escape_lets_it_go(shown):
    from selenium.webdriver.common.keys import Keys

    whole = colours(shown)[FORWARD]
    move(shown, "2F1.3", click=True)
    followed = colours(shown)
    assert followed[FORWARD] < whole / 3
    press(shown, Keys.ESCAPE)
    assert colours(shown)[FORWARD] == whole


def test_switches_take_instructions_away_and_bring_others(shown):
    before = colours(shown)
    shown.find_element("name", "STEP").click()
    settle(shown)
    assert colours(shown).get(STEP, 0) < before[STEP] / 10
    shown.find_element("name", "STEP").click()
    for name in ("transfers", "memory"):
        shown.find_element("id", name).click()
        settle(shown)
        after = colours(shown)
        assert after != before
        before = after


def test_grouping_moves_the_rows(shown):
    from selenium.webdriver.support.select import Select

    before = shown.execute_script("return [schedule.place('3F0.0').y, schedule.place('0F2.0').y]")
    assert before[0] > before[1]
    Select(shown.find_element("id", "grouping")).select_by_value("pipeline")
    settle(shown)
    after = shown.execute_script("return [schedule.place('3F0.0').y, schedule.place('0F2.0').y]")
    assert after[0] < after[1]


def test_idle_time_says_what_ends_it(open_page):
    # F of the second stage waits for that of the first one.
    two = small(stages=2, forward=5)
    shown = open_page(Panel("plan", chart_of(two), timeline(two)))
    before = colours(shown)
    move_to(shown, "W0_1", 2)
    assert tip(shown) == "W0_1\nidle from 0 to 5\n1F0.0 waits for 0F0.0 on W0_0 until 5"
    assert colours(shown) != before
    move_to(shown, "W0_0", 6)
    assert "0B0.0 waits for 1I0.0 on W0_1 until 11" in tip(shown)


def test_the_critical_path_is_what_the_end_waited_for(open_page):
    two = small(stages=2, forward=5)
    shown = open_page(Panel("plan", chart_of(two), timeline(two)))
    assert CRITICAL not in colours(shown)
    shown.find_element("id", "critical").click()
    settle(shown)
    assert colours(shown)[CRITICAL] > 300
    assert "critical path" in shown.find_element("id", "legend").text
    path = shown.execute_script("return schedule.critical()")
    assert path == ["0F0.0", "1F0.0", "1I0.0", "0B0.0", "0REDUCE", "0STEP"]


def test_memory_has_a_lane_with_its_limit(shown):
    before = shown.execute_script("return schedule.place('2F1.3')")
    press(shown, "m")
    settle(shown)
    seen = colours(shown)
    assert seen[MEMORY] > 5000
    assert seen[LOST] > 500
    after = shown.execute_script("return schedule.place('2F1.3')")
    assert after["y"] != before["y"]
    texts = written(shown)
    assert texts.count("limit 4") == 11


def test_a_search_goes_to_a_server_an_instruction_or_a_micro_batch(shown):
    from selenium.webdriver.common.keys import Keys

    field = shown.find_element("id", "search")
    said = shown.find_element("id", "found")
    field.send_keys("2F1.3")
    assert tip(shown).startswith("2F1.3 on W0_2")
    assert said.text == "on W0_2"
    field.clear()
    field.send_keys("w2_3")
    assert tip(shown).startswith("3F2.0 on W2_3")
    for text, found in (("W1_2", "dead"), ("9.9", "not here")):
        field.clear()
        field.send_keys(text)
        assert said.text == found
    field.clear()
    whole = colours(shown)[FORWARD]
    field.send_keys("1.3", Keys.ENTER)
    settle(shown)
    assert colours(shown)[FORWARD] < whole / 3


def test_keys_work_without_a_click(shown):
    from selenium.webdriver.common.action_chains import ActionChains

    before = shown.execute_script("return schedule.place('2F1.3')")
    ActionChains(shown).send_keys("+").perform()
    settle(shown)
    assert shown.execute_script("return schedule.place('2F1.3')")["width"] > before["width"]


def test_the_tip_follows_what_comes_under_the_pointer(shown):
    from selenium.webdriver.common.action_chains import ActionChains

    place = move(shown, "0F0.2")
    assert tip(shown).startswith("0F0.2 on W0_0")
    actions = ActionChains(shown)
    actions.send_keys("+" * 9).perform()
    settle(shown)
    seen = shown.execute_script("return schedule.place('0F0.2')")
    assert seen["x"] + seen["width"] < place["x"], "zooming at the middle takes it out of the pointer's way"
    assert not tip(shown).startswith("0F0.2 on W0_0")


def test_the_address_has_the_view(shown):
    from selenium.webdriver.support.wait import WebDriverWait

    move(shown, "2F1.3", click=True)
    press(shown, "+", "+", "c")
    shown.find_element("name", "W").click()
    settle(shown)
    where = "const {x, y, width} = schedule.place('2F1.3'); return [x, y, width].map(Math.round)"
    place = shown.execute_script(where)
    WebDriverWait(shown, 20).until(lambda _: "follow=0%2F1.3" in shown.current_url and "hide=W" in shown.current_url)
    address = shown.current_url
    shown.get("about:blank")
    shown.get(address)
    assert shown.execute_script(where) == place
    assert not shown.find_element("name", "W").is_selected()
    assert shown.find_element("id", "critical").is_selected()


def test_what_is_seen_can_be_saved(shown):
    from xml.etree import ElementTree

    image = pytest.importorskip("PIL.Image")
    move(shown, "2F1.3", click=True)
    press(shown, "m", "c", "t")
    settle(shown)
    picture = ElementTree.fromstring(shown.execute_script("return schedule.svg()"))
    assert len(picture.findall(".//{*}rect")) > 200
    assert "W0_2" in [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    content = shown.execute_async_script(
        "const done = arguments[0]; schedule.png().then((blob) => blob.arrayBuffer())"
        ".then((bytes) => done([...new Uint8Array(bytes)]))"
    )
    assert image.open(io.BytesIO(bytes(content))).size[0] > 1000


def test_wheel_keys_and_drag_zoom_and_pan(shown):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.common.keys import Keys

    plot = shown.find_element("id", "plot")
    place = "return schedule.place('2F1.3')"
    fitted = shown.execute_script(place)
    ActionChains(shown).scroll_from_origin(ScrollOrigin.from_element(plot), 0, -400).perform()
    settle(shown)
    wheeled = shown.execute_script(place)
    assert wheeled["width"] > fitted["width"] * 1.3
    press(shown, "+")
    settle(shown)
    keyed = shown.execute_script(place)
    assert keyed["width"] > wheeled["width"]
    ActionChains(shown).drag_and_drop_by_offset(plot, -60, 0).perform()
    settle(shown)
    assert shown.execute_script(place)["x"] == pytest.approx(keyed["x"] - 60, abs=2)
    press(shown, "]")
    settle(shown)
    assert shown.execute_script(place)["height"] > keyed["height"]
    press(shown, Keys.HOME)
    settle(shown)
    assert shown.execute_script(place) == fitted


def test_keys_go_from_box_to_box_and_follow(shown):
    from selenium.webdriver.common.keys import Keys

    press(shown, Keys.ARROW_RIGHT)
    assert tip(shown).startswith("0F0.0 on W0_0")
    press(shown, Keys.ARROW_RIGHT)
    assert tip(shown).startswith("0F0.1 on W0_0")
    press(shown, Keys.ARROW_DOWN)
    assert "on W1_0" in tip(shown)
    press(shown, Keys.ARROW_UP, Keys.ARROW_LEFT)
    assert tip(shown).startswith("0F0.0 on W0_0")
    whole = colours(shown)[FORWARD]
    press(shown, Keys.ENTER)
    assert colours(shown)[FORWARD] < whole / 3


@pytest.mark.long
def test_many_boxes_are_painted_as_pixels(open_page):
    many = small(pipelines=48, stages=4, micro_batches=24, failed=(DEAD,))
    shown = open_page(Panel("many", chart_of(many), timeline(many)))
    shown.execute_script("document.getElementById('folded').click()")
    settle(shown)
    assert colours(shown)[FORWARD] > 1000
    move(shown, "0F0.0")
    assert tip(shown).startswith("0F0.0 on W0_0")


def test_keys_go_to_folded_groups_and_dead_servers_and_open_them(shown):
    from selenium.webdriver.common.keys import Keys

    shown.execute_script("document.getElementById('folded').click()")
    press(shown, Keys.ARROW_DOWN)
    assert tip(shown).startswith("stage 0\nof 3 servers")
    press(shown, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert tip(shown).startswith("stage 2\nof 3 servers")
    press(shown, Keys.ARROW_DOWN)
    assert tip(shown).startswith("W1_2\ndead")
    press(shown, Keys.ARROW_UP, Keys.ENTER, Keys.ARROW_DOWN)
    assert "on W0_2" in tip(shown)
    press(shown, Keys.ESCAPE)
    assert tip(shown) == ""
    shown.execute_script("schedule.find('W1_2')")
    assert tip(shown).startswith("W1_2\ndead")


@pytest.mark.long
def test_groups_of_too_many_servers_are_folded_and_the_dead_are_named(open_page):
    from selenium.webdriver.common.action_chains import ActionChains

    many = small(pipelines=48, stages=4, micro_batches=24, failed=(DEAD,))
    shown = open_page(Panel("many", chart_of(many), timeline(many)))
    assert shown.find_element("id", "folded").is_selected()
    seen = colours(shown)
    assert seen[FORWARD] > 1000
    # The work of W1_2, in the colour of pipeline 1.
    assert seen[LOST] > 500
    texts = written(shown)
    assert "\u25b8 stage 2" in texts
    assert "47 of 48 live" in texts
    assert "W1_2" in texts
    assert "W2_2" not in texts
    place = shown.execute_script("return schedule.place('2F3.0')")
    actions = ActionChains(shown)
    actions.w3c_actions.pointer_action.move_to_location(round(place["x"]) + 2, round(place["y"]) + 9)
    actions.perform()
    assert tip(shown).startswith("stage 2\nof 48 servers ")
    assert "at re-routed work" in tip(shown) or "dead" in tip(shown)
    actions.w3c_actions.pointer_action.click()
    actions.perform()
    settle(shown)
    assert "W2_2" in written(shown)
