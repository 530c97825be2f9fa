"""docs/reference/compatibility.md is what the code decides, and has every setting that the code has a rule for."""

import re
from argparse import ArgumentParser

import pytest

from harness.paths import ROOT
from harness.plan_options import plan_options, ruled_settings
from recycle.megatron.flag.command.flags import add_flags
from scripts.make_compatibility import BESIDE, JOB, PAGE, ROWS, judged, make_page, option

SIZES = {"--eval-interval", "--clip-grad", "--decoder-seq-length"}
FOUND = set(re.findall(r"--[a-z0-9][\w-]*", PAGE.read_text()))


@pytest.mark.filterwarnings("ignore:Apex is not installed")
def test_the_page_is_what_the_script_makes():
    assert make_page() == PAGE.read_text(), "differs; if that is meant, run python scripts/make_compatibility.py"


def test_every_option_that_a_plan_depends_on_is_on_the_page():
    of_job = set(re.findall(r"--[a-z0-9][\w-]*", JOB))
    assert sorted(plan_options() - FOUND - of_job - SIZES) == []


def test_every_setting_that_a_rule_is_about_is_on_the_page():
    missing = [name for name in ruled_settings() if option(name) and option(name) not in FOUND]
    assert missing == []


def test_every_flag_that_changes_what_works_is_a_column():
    ours = {word for action in add_flags(ArgumentParser(add_help=False))._actions for word in action.option_strings}
    known = {
        *("--pipeline-schedule", "--recycle-dead", "--recycle-catalogue", "--recycle-budget", "--recycle-store"),
        *("--recycle-restarts", "--recycle-record", "--recycle-resume"),
        *("--recycle-token-file", "--recycle-trust-network"),
    }
    assert ours - known == set(re.findall(r"--recycle-[\w-]+", " ".join(BESIDE.values()))) - known


def test_what_is_refused_is_no_row():
    for row in (row for rows in ROWS.values() for row in rows):
        assert judged(row.layers, row.words).runs, row


def test_a_row_names_what_the_doctor_would_say():
    assert [each.name for each in judged("--use-distributed-optimizer", "--fp16").refused] == ["fp16"]
    assert "| fp16 <code>--fp16</code> | split | yes | no " in (ROOT / PAGE).read_text()
