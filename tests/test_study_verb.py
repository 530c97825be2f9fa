import csv
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from recycle.cli.verbs import group
from recycle.errors import UserError

JOB = (str(Path(__file__).with_name("study.toml")),)


def study(*arguments, job=JOB):
    result = CliRunner().invoke(group, ["study", *job, *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    lines = [f"{node},{node + 1},{node + 2.5}" for node in range(8)]
    path.write_text("# nodes 12\n# days 20\nnode,start_days,end_days\n" + "\n".join(lines) + "\n")
    return path


def test_a_table_of_policies(trace):
    result = study("--trace", trace, "--policy", "ours,oobleck,fault-scaled", "--seeds", 1)
    assert result.exit_code == 0
    assert re.search(r"^ours +0\.9\d+ +0\.9\d+ +0\.9\d+ +12 ", result.stdout, re.MULTILINE)
    assert "fault-scaled (model only)" in result.stdout
    assert "20 days, 8 times servers failed" in result.stdout


def test_json_has_buckets_that_add_up(trace):
    policies = json.loads(study("--trace", trace, "--seeds", 2, "--json").stdout)
    assert len(policies) >= 13
    for each in policies:
        assert sum(each["buckets"].values()) == pytest.approx(each["servers"] * 20 * 86_400, abs=1)
        assert each["low"] <= each["value"] <= each["high"]


def test_the_page_and_its_tables(trace, tmp_path):
    out = tmp_path / "out"
    for _ in range(2):
        study("--trace", trace, "--policy", "ours,ours+placements,spares:2", "--seeds", 1, "-o", out)
        page = (out / "index.html").read_text()
    assert page.count("<svg") == 4
    assert "ours+placements <span class=m>(model only)</span>" in page
    assert page == (out / "index.html").read_text()
    with (out / "policies.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["policy"] for row in rows] == ["ours", "ours+placements", "spares:2"]
    assert [row["servers_paid"] for row in rows] == ["12", "12", "14"]
    with (out / "timeline.csv").open() as file:
        spans = [row for row in csv.DictReader(file) if row["policy"] == "ours"]
    assert float(spans[0]["start"]) == 0
    assert float(spans[-1]["end"]) == 20 * 86_400
    with (out / "retention.csv").open() as file:
        assert next(csv.DictReader(file)) == {"policy": "ours", "dead": "0", "rate": "1.0"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "magic"), "policy 'magic': there is none; choose from ours, "),
        (("--layers", 3), "layers is 3: 4 stages need at least 4"),
        (("--speed", 0), "speed is 0"),
    ],
)
def test_what_cannot_be_used(arguments, message):
    with pytest.raises(UserError, match=message):
        study(*arguments)


def test_an_empty_trace(tmp_path):
    (tmp_path / "trace.csv").write_text("")
    with pytest.raises(UserError, match="it is empty: give a trace with at least one failure"):
        study("--trace", tmp_path / "trace.csv")
