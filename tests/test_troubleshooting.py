"""docs/howto/troubleshooting.md explains every line that says what is wrong with a run, and no other."""

import re

import pytest

from harness.messages import OF_SETTINGS, PACKAGE, messages_of_runs
from harness.paths import ROOT

PAGE = ROOT / "docs" / "howto" / "troubleshooting.md"


def entries():
    """Title, lines and text of each."""
    for part in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = re.split(r"^## ", part, flags=re.MULTILINE)[0].partition("\n")
        blocks = re.findall(r"^```text\n(.*?)^```", body, re.DOTALL | re.MULTILINE)
        yield title, [line for block in blocks for line in block.splitlines()], body


ENTRIES = list(entries())
EXPLAINED = [line for _, lines, _ in ENTRIES for line in lines]


def missing(messages, lines):
    """The messages that no line shows."""
    return sorted({str(each) for each in messages if not any(each.pattern.search(line) for line in lines)})


def test_every_message_of_a_run_has_an_entry(golden):
    """The file has the others: they say that nothing is wrong, stand in a line for a value, or are what others say."""
    golden("messages_without_entry.txt", "".join(f"{each}\n" for each in missing(messages_of_runs(), EXPLAINED)))


def test_every_line_with_an_entry_is_one_that_a_run_can_say():
    messages = messages_of_runs()
    assert [line for line in EXPLAINED if not any(each.pattern.search(line) for each in messages)] == []


@pytest.mark.parametrize(("title", "lines", "body"), ENTRIES, ids=[title for title, _, _ in ENTRIES])
def test_an_entry_says_what_a_line_means_and_what_to_do(title, lines, body):
    assert lines, title
    assert re.search(r"^\*\*Meaning\.\*\* \S", body, re.MULTILINE)
    assert re.search(r"^\*\*What to do\.\*\* \S", body, re.MULTILINE)


def test_no_line_stands_twice():
    assert sorted(EXPLAINED) == sorted(set(EXPLAINED))


def test_the_files_of_settings_are_there():
    files = {str(path) for path in PACKAGE.rglob("*.py")}
    assert [name for name in OF_SETTINGS if not any(path.endswith(name) for path in files)] == []
