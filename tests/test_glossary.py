"""docs/reference/glossary.md: its figures are true, and every word has one meaning."""

import re

import pytest
from click import Context

from harness.examples import DEAD, QUICK
from harness.paths import ROOT
from recycle.cli.verbs import group
from recycle.jobfile import load_job
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.wording import throughput_text

TEXT = (ROOT / "docs" / "reference" / "glossary.md").read_text()
TERMS = [
    term for row in re.findall(r"^\|[^|]*\|([^|]*)\|", TEXT, re.MULTILINE) for term in re.findall(r"\*\*(.+?)\*\*", row)
]


def test_every_word_is_explained_once():
    assert len(TERMS) > 25
    assert sorted(TERMS) == sorted(set(TERMS))


def test_the_example_of_throughput_is_that_of_the_worked_example():
    job = load_job(ROOT / "schedules" / "paper.toml", {})
    whole, without = (make_plan(job, dead, Mode(), QUICK) for dead in ((), DEAD))
    slots = re.search(r"(\d+) slots with all servers, (\d+) slots with one dead, (\d+) slots for 1F1B", TEXT)
    assert [whole.period, without.period, without.baseline] == [int(each) for each in slots.groups()]
    said = throughput_text(without.throughput, job.baseline_name, whole.throughput)
    assert said == "planned throughput 80% of before (100% of fault-free 1F1B)"


def test_the_example_of_failures_is_calculated_rightly():
    hours, servers, days = map(float, re.search(r"in ([\d.]+) hours on (\d+) servers is (\d+) days", TEXT).groups())
    assert hours * servers == days * 24


@pytest.mark.parametrize("verb", ["train", "explain"])
def test_options_that_it_names_are_there(verb):

    options = {name for each in group.get_command(Context(group), verb).params for name in each.opts}
    rows = re.findall(rf"^\| (.*) of `recycle {verb}` \|", TEXT, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(--[\w-]+)", row)]
    assert named
    assert set(named) <= options
