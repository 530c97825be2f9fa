import io
import json
import logging

import pytest
from rich.console import Console

from recycle.cli import console
from recycle.cli.console import make_console, print_json, progress_line
from recycle.saying import say


@pytest.fixture
def show(monkeypatch):
    def call(texts, terminal):
        output = io.StringIO()
        shown = Console(file=output, force_terminal=terminal, width=80)
        monkeypatch.setattr(console, "make_console", lambda *, error: shown)
        with progress_line("planning") as line:
            for text in texts:
                line(text)
        return output.getvalue()

    return call


def test_without_a_terminal_there_is_a_line_now_and_then_and_the_last_one(show, monkeypatch):
    monkeypatch.setattr(console, "PACE", 3600.0)
    texts = [f"period [{number}]" for number in range(100)]
    lines = show([*texts, texts[-1]], terminal=False).splitlines()
    assert [line.split(" after ")[0] for line in lines] == [texts[0], texts[-1]]
    assert lines[0].endswith(" s")
    assert len(show(texts[:1], terminal=False).splitlines()) == 1
    assert show([], terminal=False) == ""


def test_without_a_terminal_a_line_is_printed_when_it_is_due_and_differs(show, monkeypatch):
    monkeypatch.setattr(console, "PACE", 0.0)
    lines = show(["period [9]", "period [9]", "period [8]", "planning"], terminal=False).splitlines()
    assert [line.split(" after ")[0] for line in lines] == ["period [9]", "period [8]", "planning"]


def test_what_is_counted_is_said_with_the_count(monkeypatch):
    output = io.StringIO()
    shown = Console(file=output, width=80)
    monkeypatch.setattr(console, "make_console", lambda *, error: shown)
    with progress_line("planning", counted=True) as line:
        for number in range(1, 16):
            line(f"plan {number}", number, 15)
    assert [each.split(" after ")[0] for each in output.getvalue().splitlines()] == ["1/15 plan 1", "15/15 plan 15"]


def test_in_a_terminal_the_line_is_taken_away_in_the_end(show):
    output = show(["period [9]"], terminal=True)
    assert "planning after 0.0 s" in output
    assert "period [9] after " in output
    assert output.endswith("\x1b[1A\x1b[2K")


STEERING = "a\x1b]0;title\x07b\x9b2Jc\u202ed\re"


def test_what_steers_a_terminal_is_never_printed_whatever_it_is_printed_in(capsys):
    from rich.table import Table
    from rich.text import Text

    table = Table(STEERING)
    table.add_row(Text(STEERING))
    for each in (STEERING, Text(STEERING), table):
        make_console().print(each)
    print_json({STEERING: [STEERING, "\U000e0001"]})
    out = capsys.readouterr().out
    assert all(each.isprintable() for each in out.replace("\n", "")), out
    assert json.loads(out[out.index("{") :]) == {STEERING: [STEERING, "\U000e0001"]}


def test_styles_are_still_those_of_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    make_console().print("seen", style="bold")
    assert capsys.readouterr().out == "\x1b[1mseen\x1b[0m\n"


def test_a_program_with_a_handler_for_it_has_what_a_run_says_in_its_log_and_not_on_standard_error(capsys):
    class Kept(logging.Handler):
        def emit(self, record):
            kept.append((record.name, record.levelname, record.getMessage()))

    kept, logger, handler = [], logging.getLogger("recycle"), Kept()
    logger.addHandler(handler)
    try:
        say(f"100% of %s{STEERING}")
    finally:
        logger.removeHandler(handler)
    say("afterwards")
    ((name, level, text),) = kept
    assert (name, level) == ("recycle", "WARNING")
    assert text.startswith("100% of %s")
    assert STEERING not in text
    assert capsys.readouterr() == ("", "recycle: afterwards\n")


def test_what_a_run_says_is_seen_and_does_no_more(capsys):
    say(f"{STEERING}\nand more")
    err = capsys.readouterr().err
    assert err.startswith("recycle: a\ufffd]0;title\ufffdb")
    assert all(each.isprintable() for each in err.replace("\n", ""))
