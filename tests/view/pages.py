"""What tests do with a page in a real browser, and what they see there."""

import io
import threading
from contextlib import contextmanager

import pytest

from harness.browser import missing
from recycle.view.serving import PageServer

IN_A_BROWSER = [
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
"""Marks of all tests of a module that takes one."""

FORWARD = (0x2F, 0x6D, 0xB5)
LOST = (0xC1, 0x12, 0x1F)
BACK = (0x2E, 0x8B, 0x57)
PAUSE = (0xFF, 0xD5, 0x4A)
DARK_PAUSE = (0xB0, 0x8A, 0x1E)
CRITICAL = (0xD6, 0x18, 0x7F)
MEMORY = (0xB9, 0xB3, 0xD6)
STEP = (0x7B, 0x57, 0xA8)


def move(browser, text, panel=0, click=False):
    """Put the pointer on an instruction."""
    from selenium.webdriver.common.action_chains import ActionChains

    place = browser.execute_script("return schedule.place(arguments[0], arguments[1])", text, panel)
    assert place is not None, f"{text} is not on the page"
    actions = ActionChains(browser)
    pointer = actions.w3c_actions.pointer_action
    pointer.move_to_location(int(place["x"] + place["width"] / 2), int(place["y"] + place["height"] / 2))
    if click:
        pointer.click()
    actions.perform()
    return place


def move_to(browser, label, time):
    """Put the pointer on a server's row at a time."""
    from selenium.webdriver.common.action_chains import ActionChains

    place = browser.execute_script("return schedule.moment(arguments[0], arguments[1])", label, time)
    actions = ActionChains(browser)
    actions.w3c_actions.pointer_action.move_to_location(round(place["x"]), round(place["y"]))
    actions.perform()


def press(browser, *keys):
    browser.find_element("id", "plot").send_keys(*keys)


def tip(browser):
    return browser.execute_script(
        "const tip = document.getElementById('tip'); return tip.style.display === 'block' ? tip.innerText : ''"
    )


def colours(browser, element="plot"):
    """How often each colour is on the screen, from a screenshot."""
    image = pytest.importorskip("PIL.Image")

    picture = image.open(io.BytesIO(browser.find_element("id", element).screenshot_as_png)).convert("RGB")
    return {colour: count for count, colour in picture.getcolors(1 << 24)}


def settle(browser):
    """Wait until what was asked for is drawn."""
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def written(browser):
    """All texts on the canvas."""
    browser.execute_script(
        "window.texts = []; const pen = CanvasRenderingContext2D.prototype; const write = pen.fillText;"
        "pen.fillText = function (text, ...rest) { texts.push(text); write.call(this, text, ...rest); };"
        "document.getElementById('fit').click()"
    )
    settle(browser)
    return browser.execute_script("return texts")


@contextmanager
def served(routes, address="127.0.0.1"):
    """A page, served by a thread for the length of a block."""
    server = PageServer(address, 0, routes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
