"""``recycle watch`` in a real browser: a run in which a server is killed, and plans in which servers are."""

import re
import subprocess
import sys

import msgspec
import pytest

from harness.browser import chromium
from harness.forked import TRAINER
from harness.started import TRAIN, Started, wait_until
from recycle.record.reading import load_lines
from recycle.record.recording import ProcessLine
from recycle.record.totals import totals_of
from tests.view.conftest import SCHEDULES
from tests.view.pages import IN_A_BROWSER

pytestmark = IN_A_BROWSER
CLI = (sys.executable, "-c", "from recycle.cli import main; main()")
FAULTS = """
[[fault]]
kind = "kill"
server = "W1_1"
iteration = 4
instruction = "1F1.0"
"""


@pytest.fixture
def browser():
    with chromium() as driver:
        yield driver


@pytest.fixture
def start():
    started = []

    def call(verb, *words):
        # Who watches imports nothing that trains.
        command, imported = (TRAIN, TRAINER) if verb == "train" else (CLI, "")
        started.append(Started([*command, verb, *map(str, words)], imported=imported))
        return started[-1]

    yield call
    for each in started:
        each.kill()


def address(watch):
    watch.wait_for(" shows ")
    return re.search(r"http://\S+", watch.output)[0]


def text(browser, name):
    return browser.execute_script("return document.getElementById(arguments[0])?.innerText ?? ''", name)


def test_a_run_is_watched_through_a_kill(start, browser, tmp_path):
    (tmp_path / "faults.toml").write_text(FAULTS)
    folder = tmp_path / "run"
    shape = ("-D", 3, "--stages", 4, "--micro-batches", 4)
    # Whoever watches may be there before the run.
    browser.get(address(start("watch", folder, "--port", 0)))
    assert not folder.exists()
    wait_until(lambda: text(browser, "live-state") == "waiting for a run to begin here")
    kept = ("--keep-in-memory", "copies=1")
    run = start("train", *shape, *kept, "--iterations", 8, "--faults", tmp_path / "faults.toml", "-o", folder)
    wait_until(lambda: text(browser, "live-failures") == "1")
    wait_until(lambda: "W1_1 died: was killed by signal 9 (SIGKILL)" in text(browser, "news"))
    assert run.ended() == 0, run.output[-3000:]
    # What was told last may come with the next look at the run.
    wait_until(lambda: text(browser, "live-iteration") == "8 of 8")
    loss = totals_of(load_lines(folder))[-1].loss
    wait_until(lambda: text(browser, "live-loss") == f"{loss:.4f}")
    # The run has ended, and no process of it is shown as if it lived.
    wait_until(lambda: text(browser, "live-state").startswith("ended, at "))
    wait_until(lambda: text(browser, "live-servers") == "11 of 12 live at the end")
    dead = browser.execute_script("return document.querySelector('#servers .dead').innerText")
    assert dead
    processes = [line for line in load_lines(folder) if isinstance(line, ProcessLine) and line.name != "launcher"]
    assert len(processes) == 12
    for process in processes:
        assert f"pid {process.pid}" in text(browser, "servers")
    assert processes[0].host in text(browser, "servers")
    assert browser.execute_script("return document.querySelectorAll('#curves .failure').length") == 2
    shown = "return [...document.querySelectorAll('#copies > span')].map((each) => each.innerText)"
    host = processes[0].host
    # The last version that is kept is that with which the last iteration began.
    copies = [
        f"stage {stage}on {3 - (stage == 1)} live servers; after iteration 7 in memory of {host}" for stage in range(4)
    ]
    wait_until(lambda: browser.execute_script(shown) == copies)
    # The time line is that of the last iterations, in which the survivors do the work of the dead.
    assert browser.execute_script("return schedule.place('1F1.0', 0, 2)") is not None
    assert browser.get_log("browser") == []


def test_servers_of_a_plan_are_killed_and_brought_back_with_clicks(start, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def click(server):
        place = browser.execute_script("return schedule.moment(arguments[0], 0)", server)
        actions = ActionChains(browser)
        actions.w3c_actions.pointer_action.move_to_location(30, round(place["y"]))
        actions.w3c_actions.pointer_action.click()
        actions.perform()

    browser.get(address(start("watch", SCHEDULES / "1-fault-free.json", "--port", 0)))
    assert "all are alive" in text(browser, "figures")
    click("W1_2")
    wait_until(lambda: "dead: W1_2" in text(browser, "figures"))
    assert "dead W1_2" in " ".join(text(browser, "head").split())
    click("W1_2")
    wait_until(lambda: "all are alive" in text(browser, "figures"))
    for server in ("W0_3", "W1_3"):
        click(server)
        wait_until(lambda server=server: server in text(browser, "figures"))
    click("W2_3")
    wait_until(lambda: "stage 3" in text(browser, "figures"))
    click("W0_3")
    wait_until(lambda: "dead: W1_3;" in text(browser, "figures"))
    # What it costs is said against all servers alive, and the dead are in the address.
    assert re.search(
        r"an iteration in \d+ slots, planned throughput \d+% of all alive .*, before \d+ slots",
        text(browser, "figures"),
    )
    assert "?dead=W1_3" in browser.current_url
    browser.get(browser.current_url)
    wait_until(lambda: "dead: W1_3;" in text(browser, "figures"))
    # The keyboard does all of it.
    browser.find_element("id", "try-server").send_keys("W0_0")
    browser.find_element("id", "try-go").send_keys(Keys.ENTER)
    wait_until(lambda: "dead: W0_0, W1_3;" in text(browser, "figures"))
    # A step back that has no answer can be asked for again.
    browser.execute_script("window.asking = fetch; window.fetch = () => Promise.reject()")
    browser.find_element("id", "try-undo").send_keys(Keys.ENTER)
    wait_until(lambda: browser.find_elements("css selector", "#figures .wrong"))
    browser.execute_script("window.fetch = window.asking")
    browser.find_element("id", "try-undo").send_keys(Keys.ENTER)
    wait_until(lambda: "dead: W1_3;" in text(browser, "figures"))
    browser.find_element("id", "try-all").send_keys(Keys.ENTER)
    wait_until(lambda: "all are alive" in text(browser, "figures"))
    assert browser.get_log("browser") == []


def test_a_server_with_the_role_of_another_is_tried_by_its_own_name(start, browser, run, tmp_path):
    job = ["-D", "3", "-P", "2", "-M", "2"]
    assert run("catalogue", *job, "--failures", 2, "--moves", 1, "-o", tmp_path / "plans.zip")[0] == 0
    browser.get(f"{address(start('watch', tmp_path / 'plans.zip', '--port', 0))}?dead=W0_0,W1_1")
    # W0_1 as W1_1 is one of the rows.
    wait_until(lambda: "dead: W0_0, W1_1" in text(browser, "figures"))
    names = [option.text for option in browser.find_elements("css selector", "#try-server option")]
    assert sorted(names) == [f"W{pipeline}_{stage}" for pipeline in range(3) for stage in range(2)]


def test_a_plan_from_standard_input_is_tried():
    command = [sys.executable, "-c", "from recycle.cli import main; main()", "watch", "-", "--port", "0"]
    plan = msgspec.json.encode({"format": "recycle plan"})
    done = subprocess.run(command, input=plan, capture_output=True, timeout=120, check=False)
    # What is no plan would be waited for, as the folder of a run.
    assert (done.returncode, done.stderr.startswith(b"recycle: -: ")) == (2, True)
