import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.examples import paper_job
from recycle.cli.verbs import group
from recycle.errors import UserError
from recycle.faults.outages import load_outages
from recycle.faults.random_faults import random_faults
from recycle.study.failures import FailureHistory

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
    result = study("--trace", trace, "--policy", "recycle,oobleck", "--seeds", 1)
    assert result.exit_code == 0
    assert re.search(r"^recycle +0\.9\d+ +0\.9\d+ +0\.9\d+ +12 ", result.stdout, re.MULTILINE)
    assert "20 days, servers failed 8 times in the mean of 1 sample" in result.stdout
    assert re.search(r"^(recycle|oobleck) keeps 9\d\.\d\d% ", result.stdout, re.MULTILINE)


def test_json_has_buckets_that_add_up(trace):
    policies = json.loads(study("--trace", trace, "--seeds", 2, "--json").stdout)["policies"]
    assert len(policies) >= 10
    for each in policies:
        assert sum(each["shares"].values()) == pytest.approx(1, abs=1e-9)
        assert each["goodput_low"] <= each["goodput"] <= each["goodput_high"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layers", 3), "layers is 3: 4 stages need at least 4"),
        (("--repair", "4h"), "--repair: a trace has its own repairs; give --mtbf-of-job too"),
        (("--mtbf-of-job", "7h"), "--mtbf-of-job: give --repair too"),
        (
            ("--mtbf-of-job", "7h", "--repair", "4h", "--servers", 4),
            "--servers: --mtbf-of-job takes no account of it; leave",
        ),
        (("--mtbf-of-job", "0s", "--repair", "4h"), "mean time between two failures of the job is 0 s: give"),
        (("--mtbf-of-job", "7h", "--repair", "0s"), "mean time to repair is 0 s: give"),
        (("--constant", "restart=5m", "--constant", "restart=6m"), "--constant restart: it is given twice; leave one"),
        (("-D", "9999999"), "servers: a study has 1000000 at most; give fewer"),
        (("--price", "2.5"), "price 2.5: give it for an hour of a GPU or of a server, such as 2.5/gpuh"),
        (("--price", "2.5/gpuh"), "price 2.5/gpuh: give gpus-per-server too"),
    ],
)
def test_what_cannot_be_used(arguments, message):
    with pytest.raises(UserError, match=message):
        study(*arguments)


LEAD = (
    *("--mtbf-of-job", "75h", "--repair", "4h", "--constant", "restart=5m"),
    *("--constant", "checkpoint-interval=30m", "--constant", "checkpoint-cost=20s"),
)


def test_the_questions_of_an_infrastructure_lead():
    year = (*LEAD, "--seeds", 1)
    arguments = (*year, "--gpus-per-server", 8, "--price", "2.5/gpuh", "--policy", "recycle,checkpoints,spares:1")
    found = json.loads(study(*arguments, "--json").stdout)
    sentence = found["sentence"]
    assert sentence.startswith("recycle keeps")
    for part in (
        ") of the training that is paid for",
        "GPU-hours (",
        "in money) a year, restarts from checkpoints lose",
        "spare",
    ):
        assert part in sentence
    # Each figure has its unit: money is given beside it.
    assert sentence.count("would save") == len(re.findall(r"would save [0-9,]+ GPU-hours", sentence)) > 0
    for each in found["policies"]:
        # All columns of a row are of the same samples, and follow from each other.
        lost = (1 - each["goodput"]) * each["servers"] * 8766
        assert each["lost_gpu_hours"] == pytest.approx(8 * lost)
        assert each["lost_money"] == pytest.approx(20 * lost)
        assert each["shares"]["useful"] <= 1
    given = {each["name"]: each["typical"] for each in found["constants"] if each["source"] == "given"}
    assert given == {"checkpoint-interval": 1800, "checkpoint-cost": 20, "restart": 300}
    # A year has a failure every 75 h in the mean.
    assert found["policies"][0]["failures"] == pytest.approx(117, rel=0.2)
    # A row is the same beside others: spares fail by a seed of their own.
    (alone,) = json.loads(study(*year, "--policy", "recycle", "--json").stdout)["policies"]
    assert alone["goodput"] == found["policies"][0]["goodput"]
    (as_it_is,) = [each for each in found["choices"] if each["topic"] == "spare servers" and each["is_present"]]
    assert as_it_is["goodput"] == pytest.approx(alone["goodput"], abs=1e-12)
    assert all(each["source"] for each in (*found["policies"], *found["constants"]))


def test_a_trace_is_of_as_many_servers_as_it_is_said_to_be(tmp_path):
    path = tmp_path / "mine.csv"

    def failures(servers, *arguments):
        lines = "".join(f"n{node},{node + 1},{node + 1.5}\n" for node in range(servers))
        path.write_text(f"node,start_days,end_days\n{lines}")
        found = json.loads(study("--trace", path, *arguments, "--policy", "dropping", "--seeds", 1, "--json").stdout)
        return found["policies"][0]["failures"]

    assert failures(8) == 8  # of the job's twelve
    assert failures(8, "--servers", 12) == 8
    assert failures(8, "--servers", 8) > 8
    with pytest.raises(
        UserError, match=r"it names 13 servers that failed, and does not say of how many; give --servers"
    ):
        failures(13)
    assert failures(13, "--servers", 13) == 12


def test_random_failures_are_those_of_a_run(tmp_path):
    job = paper_job()
    faults = random_faults(job, 3600.0, 5, 86_400.0, 600.0)
    path = tmp_path / "faults.toml"
    path.write_text(
        "".join(
            f'[[fault]]\nkind = "{each.kind.value}"\nserver = "{each.servers[0]}"\nat = "{each.at}s"\n'
            for each in faults.entries
        )
    )
    recorded = load_outages(str(path), job)
    drawn = FailureHistory.random(3600.0, 12, 600.0).sample(12, 4, 5)
    mine = [each for each in drawn.entries if each.start < 86_400 and each.node < 12]
    ended = [each for each in recorded.entries if each.end < recorded.seconds]
    assert len(ended) > 10
    for one, other in zip(ended, mine, strict=False):
        assert one.node == other.node
        assert one[1:] == pytest.approx(other[1:], abs=2e-3)
