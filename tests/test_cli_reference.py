"""docs/reference/cli.md is what the verbs' help says, and has every option of each."""

import re

import click
import pytest

from recycle.cli.verbs import VERBS, group
from scripts.make_cli_reference import PAGE, make_page

TEXT = PAGE.read_text()


def test_the_page_is_what_the_script_makes():
    assert make_page() == TEXT, "differs; if that is meant, run python scripts/make_cli_reference.py"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_all_its_options_and_their_defaults(verb):
    (part,) = re.findall(rf"^## recycle {verb}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    command = group.get_command(click.Context(group), verb)
    context = click.Context(command)
    for each in command.get_params(context):
        if not isinstance(each, click.Option) or "--help" in each.opts:
            continue
        (row,) = re.findall(rf"^\| (?:`|<code>)(?:-\w, )?{each.opts[-1]}[ `<].*\|$", part, re.MULTILINE)
        default = each.get_default(context)
        if each.show_default and default is not None:
            assert f"| {default} |" in row
        if each.is_flag:
            assert "| off |" in row


def options_of(verb):
    """The options of a verb, without --help."""
    command = group.get_command(click.Context(group), verb)
    return [each for each in command.params if isinstance(each, click.Option)]


def test_verbs_and_options_stay_few():
    assert len(VERBS) <= 12
    assert sum(len(options_of(verb)) for verb in VERBS) <= 110
    assert len(options_of("train")) <= 25
