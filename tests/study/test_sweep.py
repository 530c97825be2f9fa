import csv
import io

import pytest

from harness.examples import paper_job
from recycle.errors import UserError
from recycle.faults.outages import load_outages
from recycle.study.compare import StudySetting
from recycle.study.failures import FailureHistory
from recycle.study.rates import Ground
from recycle.study.sweep import Axes, Cell, parse_axes, sweep, sweep_table

SETTING = StudySetting(
    Ground(paper_job(limit=6), 10.0, 16, 1e-5),
    FailureHistory.recorded(load_outages("language-model-cluster")),
    ("recycle", "oobleck", "spares:2", "fault-scaled"),
    1,
)


def test_axes():
    axes = parse_axes("mtbf-of-server=240d,1h servers=100 micro-batches=6,64")
    assert axes == Axes((240 * 86_400.0, 3600.0), (100,), (6, 64))
    assert parse_axes("mtbf-of-server=1h,servers=8,16") == Axes((3600.0,), (8, 16))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("6,7", "'6' is no axis; write mtbf-of-server=..., servers=..., micro-batches=..."),
        ("racks=3", "'racks' is no axis"),
        ("servers=many", "servers has 'many': give whole numbers"),
        ("mtbf-of-server=soon", "soon"),
        ("servers=", "servers has no value; give some, or leave it out"),
        ("micro-batches=4 servers=,", "servers has no value"),
        ("mtbf-of-server=0s", "mtbf-of-server is 0s: give a time above 0"),
    ],
)
def test_bad_axes(text, message):
    with pytest.raises(UserError, match=message):
        parse_axes(text)


def test_a_map():
    told = []
    cells = sweep(SETTING, Axes(mtbf=(100 * 86_400.0, 1000 * 86_400.0), servers=(24, 9)), told.append)
    assert [(cell.servers, cell.mtbf / 86_400) for cell in cells] == [(24, 100), (8, 100), (24, 1000), (8, 1000)]
    assert sorted(told)[-1] == "4 of 4 places of the map"
    for cell in cells:
        assert set(cell.goodput) == set(SETTING.policies)
        assert all(cell.low[name] <= cell.goodput[name] <= cell.high[name] for name in cell.goodput)
        # Rivals were measured with several models, and nothing was measured for the share of live servers.
        assert cell.low["oobleck"] < cell.high["oobleck"]
        assert cell.low["fault-scaled"] == cell.high["fault-scaled"]
    # With rarer failures all lose less.
    assert all(cells[2].goodput[name] > cells[0].goodput[name] for name in ("recycle", "oobleck", "fault-scaled"))
    rows = list(csv.DictReader(io.StringIO(sweep_table(cells).decode())))
    assert len(rows) == 4 * 4


def test_who_is_ahead():
    cell = Cell(
        0.0,
        8,
        6,
        {"recycle": 0.9, "fault-scaled": 1.0, "oobleck": 0.8},
        {"recycle": 0.9, "fault-scaled": 1.0, "oobleck": 0.7},
        {"recycle": 0.9, "fault-scaled": 1.0, "oobleck": 0.95},
    )
    assert cell.text("oobleck") == "0.8000 (0.7000 to 0.9500)"
    assert (cell.rival, cell.loses("recycle")) == ("oobleck", ("oobleck",))


def test_too_few_servers():
    with pytest.raises(UserError, match="3 servers make no pipeline of 4 stages"):
        sweep(SETTING, Axes(servers=(3,)))
