"""The verbs ``show`` and ``explain`` as a user calls them."""

import json
import os

import msgspec
import pytest

from harness.recordings import save_recording
from recycle.cli.watch import secret_of, try_plans, watch_run
from recycle.job import Server
from recycle.plan.document import load_plan, save_plan
from recycle.plan.instruction import Op
from tests.view.conftest import SCHEDULES
from tests.view.disturbed import write_disturbed
from tests.view.samples import measured

STAGGERED = SCHEDULES / "4-staggered.json"
FUSED = SCHEDULES / "2-fused.json"


@pytest.fixture
def illegal(staggered, tmp_path):
    path = tmp_path / "illegal.json"
    save_plan(msgspec.structs.replace(staggered, period=1), path)
    return path


@pytest.fixture
def stuck(staggered, tmp_path):
    programs = dict(staggered.programs)
    for server in (Server(0, 2), Server(0, 3)):
        programs[server] = tuple(sorted(programs[server], key=lambda each: each.op is Op.F))
    path = tmp_path / "stuck.json"
    save_plan(msgspec.structs.replace(staggered, programs=programs), path)
    return path


def test_the_default_is_a_drawing_in_the_terminal(run, golden):
    status, out, err = run("show", STAGGERED)
    assert (status, err) == (0, "")
    assert "W1_2 x dead: 1 3 5 on W0_2; 0 2 4 on W2_2" in out


def test_what_has_a_name_that_is_no_utf_8_is_shown(run, tmp_path):
    plan = tmp_path / os.fsdecode(b"pl\xffan.json")
    save_plan(load_plan(STAGGERED), plan)
    folder = write_disturbed(tmp_path / os.fsdecode(b"ru\xffn"))
    for path, name in ((plan, "pl\ufffdan"), (folder, "ru\ufffdn")):
        status, out, err = run("show", path, "--against", path, "--json")
        assert (status, err, [each["name"] for each in json.loads(out)]) == (0, "", [name] * 2)
        files = [tmp_path / f"a.{kind}" for kind in ("svg", "html", "json")]
        options = zip(("--svg", "--html", "--trace"), files, strict=True)
        assert run("show", path, "--against", path, *(each for pair in options for each in pair))[0] == 0
        assert all(name.encode() in file.read_bytes() for file in files[1:])
    assert run("show", folder, "--losses", tmp_path / "losses.svg")[0] == 0
    for routes in (watch_run(folder), try_plans(plan)):
        assert b"\xef\xbf\xbd" in routes["/"].answer({})
    assert len({secret_of(plan), secret_of(folder)}) == 2


def test_every_file_is_written(run, tmp_path):
    files = {"--svg": "a.svg", "--html": "a.html", "--trace": "a.json"}
    pairs = [each for option, name in files.items() for each in (option, tmp_path / name)]
    status, out, err = run("show", STAGGERED, *pairs, "--iterations", "2", "--by", "pipeline")
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == sorted(f"written to {tmp_path / name}" for name in files.values())
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]


def test_two_schedules_are_drawn_below_each_other_and_compared(run, ran, tmp_path):
    out = ran("show", FUSED, "--against", STAGGERED)
    assert "2-fused:" in out
    assert "4-staggered:" in out
    assert "only in the second" in out.splitlines()[-1]
    assert (
        run("show", FUSED, "--against", STAGGERED, "--html", tmp_path / "a.html", "--svg", tmp_path / "a.svg")[0] == 0
    )
    assert run("show", FUSED, "--against", STAGGERED, "--trace", tmp_path / "a.json")[0] == 0


def test_a_measured_run_is_shown_alone_and_against_its_plan(ran, staggered, tmp_path):
    save_recording(measured(staggered), tmp_path / "run.jsonl")
    assert "W1_2 x dead" in ran("show", tmp_path / "run.jsonl")
    out = ran("show", STAGGERED, "--against", tmp_path, "--iterations", "2")
    assert "pace: one slot of the first is 11.25 ms of the second" in out
    assert "the same, in the same order on the same servers" in out


def test_it_is_said_what_large_recordings_cost_to_read(run, tmp_path, monkeypatch):
    write_disturbed(tmp_path / "run")
    monkeypatch.setattr("recycle.cli.show.LARGE", 1000)
    status, _, err = run("show", tmp_path / "run")
    assert status == 0
    assert "GB of recordings are read into memory; --iterations 20 keeps those of the last 20 iterations" in err
    assert run("show", tmp_path / "run", "--iterations", 1)[2] == ""


def test_a_summary_as_json(ran):
    out = ran("show", STAGGERED, "--json")
    summary = json.loads(out)[0]
    assert summary["period"] == 30
    dead = next(server for server in summary["servers"] if server["dead"])
    assert dead["moved"] == {"W0_2": ["1", "3", "5"], "W2_2": ["0", "2", "4"]}


@pytest.mark.parametrize("form", [(), ("--list",), ("--json",), ("--svg", "a.svg"), ("--csv", "-")])
def test_an_illegal_plan_is_refused_in_every_form(run, illegal, stuck, tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    for path in (illegal, stuck):
        status, out, err = run("show", path, *form)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert f"{path}: the plan is illegal (" in err
        assert "recycle check shows where" in err
    assert not (tmp_path / "a.svg").exists()


def test_an_illegal_plan_is_not_tried(run, illegal):
    status, _, err = run("watch", illegal, "--port", 0)
    assert (status, "recycle check shows where" in err) == (1, True)


@pytest.mark.parametrize("option", ["--svg", "--html", "--trace"])
def test_an_unwritable_target_is_one_line(refused, tmp_path, option):
    target = tmp_path / "nowhere" / "a.png"
    err = refused("show", STAGGERED, option, target)
    assert str(target) in err
    assert len(err.splitlines()) == 1


def test_explain_says_what_bounds_what_it_costs_and_what_would_help(run, golden):
    _, out, _ = run("explain", FUSED)
    golden("view/2-fused.explain.txt", out)
    _, out, _ = run("explain", STAGGERED)
    golden("view/4-staggered.explain.txt", out)
