"""README's table "When it pays" is what its script prints."""

import itertools
import re

import pytest

from benchmarks.planner import rows_of_pays as rows
from harness.paths import ROOT

README = (ROOT / "README.md").read_text()
TABLE = re.findall(r"^\| \d+ \|.*\|$", README, re.MULTILINE)
PIPELINES, MICRO_BATCHES = [2, 4, 8, 16], [8, 16, 32, 64, 128]


def test_the_table_has_a_row_for_each_number_of_pipelines():
    assert [int(line.split()[1]) for line in TABLE] == PIPELINES
    assert all(line.count("%") == len(MICRO_BATCHES) + 1 for line in TABLE)


def test_its_heading_is_as_the_script_prints_it():
    heading = [*itertools.islice(rows(PIPELINES, 8, MICRO_BATCHES, 2000), 2)]
    assert "\n".join([*heading, TABLE[0]]) in README


@pytest.mark.parametrize("pipelines", PIPELINES[:2])
def test_few_pipelines_are_as_the_table_says(pipelines):
    (line,) = list(rows([pipelines], 8, MICRO_BATCHES[:2], 2000))[2:]
    shown = TABLE[PIPELINES.index(pipelines)].split(" | ")
    assert line.split(" | ")[1:3] == shown[1:3]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_whole_table_is_what_the_script_prints():
    assert list(rows(PIPELINES, 8, MICRO_BATCHES, 2000))[2:] == TABLE
