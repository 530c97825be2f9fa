import io

import pytest
from rich.console import Console

from recycle.cli import console
from recycle.cli.console import progress_line


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


def test_without_a_terminal_a_line_is_printed_when_the_text_changes(show):
    lines = show(["period [9]", "period [9]", "period [8]"], terminal=False).splitlines()
    assert [line.split(" after ")[0] for line in lines] == ["period [9]", "period [8]"]
    assert lines[0].endswith(" s")


def test_in_a_terminal_the_line_is_taken_away_in_the_end(show):
    output = show(["period [9]"], terminal=True)
    assert "planning after 0.0 s" in output
    assert "period [9] after " in output
    assert output.endswith("\x1b[1A\x1b[2K")
