"""docs/howto/troubleshooting.md explains every line that says what is wrong with a run, and no other."""

import re

import pytest

from harness.messages import OF_SETTINGS, PACKAGE, PLACEHOLDER, Said, messages_of_runs, texts_of
from harness.paths import ROOT

PAGE = ROOT / "docs" / "howto" / "troubleshooting.md"

REPORTS = {
    "<...> servers are connected, and make the first iteration",
    "loss <...>, <...> tokens/s, <...> each, <...> left, <...><...>",
    "<...> in <...>, <...> each in the median",
    "after <...> iterations: loss <...> on held-out text",
    "<...>; the loss scale is <...>, and <...> steps were skipped",
    "guessed the norm in <...> iterations<...>, and waited for it in <...>",
    ", <...> of them rightly",
    "processes  pgrep -f 'recycle: <...>( |$)' finds a server, recycle kill <...> <...> kills it",
    "starting <...> servers, each with its part of the model and the text",
    "written to <...>: plan.json, events, checkpoints, tensorboard, loss.svg",
    "look at    recycle show <...> --html <...>: what each server did, and each recovery",
    "recorded in <...>; recycle watch <...> shows how it goes on",
    "nothing: all of it is given",
    "version <...> of stage <...> is taken from <...>",
    "the checkpoint of step <...> is written from memory by <...>",
    "the state is kept in memory (<...>): <...> are copied in every iteration<...>, and a keeper takes at most <...>; "
    "survived are the loss of all servers of a stage, and of all losses <...> at once<...>",
    ", <...> of them to other hosts",
    "<...> of those of <...>",
    "; that of any one rack in <...> of <...> cases",
    "recovered in <...> median, <...> worst: ",
    " in the median",
    "at the end view <...>: <...><...>",
    "all failures and returns cost <...>",
    "<...> of work lost, ",
    "<...> of slower iterations",
    "<...> gained by quicker iterations",
    "<...>: <...> of work lost, <...> of recovery",
    "<...> in <...>: <...>, redo <...>; cost <...>",
    "<...>; <...> until servers return",
    "<...>; too few iterations before them to know the cost of slower ones",
    "each hour costs <...> min <...>",
    "and <...> more views",
    ", measured <...> of the start",
    "iterations <...> to <...> are",
    ", from the last checkpoint",
    "the placement has changed",
    "made now by <...>",
    "the first plan",
    "the first rank's plan",
}
"""What says how a run goes, and that nothing is wrong."""

NAMES = {
    " of <...> virtual ones each",
    "--address an address of this machine, or one of its interfaces",
    "--address, under the flag with GLOO_SOCKET_IFNAME",
    "<...> one of this machine's interfaces",
    "<...>, under the flag",
    "Megatron's own training code",
    "Python's standard library",
    "a process each",
    "abort of a communicator",
    "asks a keeper",
    "end of a group",
    "end of groups",
    "it says nothing",
    "keeper's guard",
    "notes of a vote",
    "part <...> of <...><...> of version <...> of stage <...>",
    "reads a part",
    "the host of process <...>",
    "the other process",
    "the recording in <...>",
    "the run ends",
    "tokens per second",
    "what <...> has in memory",
    "with a checkpoint",
    "writes a version",
}
"""What stands in other lines for a value, and what threads are called."""

FOREIGN = {
    "Operation timed out",
    "authentication is not enabled",
    "four beats of <...> s",
    "invalid auth token",
    "kill -STOP <...>; sleep <...>; kill -CONT <...>",
    "revision of auth store is old",
    "user name is empty",
    "^(MAJOR|MINOR|PATCH|PRE_RELEASE) *= *['\\\"]?(\\w*)",
}
"""What others say, or read."""


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


def test_every_message_of_a_run_has_an_entry():
    left = set(missing(messages_of_runs(), EXPLAINED))
    known = REPORTS | NAMES | FOREIGN
    assert left - known == set(), f"give {PAGE.name} an entry of it, or say here that nothing is wrong then"
    assert known - left == set(), "no code says this any more, or it is explained: take it out here"


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


def test_a_message_that_is_new_or_changed_is_missed():
    said = [Said("x.py", text) for text in texts_of('warn(f"the {what} of {who} is gone: {why}")\n"""A docstring."""')]
    whole = [each for each in said if each.is_sentence]
    assert [each.text for each in whole] == [f"the {PLACEHOLDER} of {PLACEHOLDER} is gone: {PLACEHOLDER}"]
    assert missing(whole, ["the store of W1_2 is gone: <cause>"]) == []
    assert missing(whole, ["the store of W1_2 was lost: <cause>"]) == ["the <...> of <...> is gone: <...>"]
