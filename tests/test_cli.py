"""The verbs that plan, check and compare plans."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.examples import job_file, paper_plan
from harness.processes import children, is_running
from harness.started import wait_until
from recycle.cli.watch import try_plans
from recycle.holding import placed
from recycle.job import Server
from recycle.plan.checker import check_plan
from recycle.plan.document import load_plan, save_plan

PAPER = ["-D", "3", "-P", "4", "-M", "6"]


def test_plan_then_check(ran, tmp_path):
    path = tmp_path / "plan.json"
    out = ran("plan", job_file(tmp_path, limit=6), "--dead", "W1_2", "--moves", "5000", "-o", path)
    assert "dead       W1_2\n" in out
    assert "period     30 slots (optimal" in out
    out = ran("check", path)
    assert "LEGAL, lowered form, dead: W1_2\n" in out
    assert "gap 0.00%" in out
    report = json.loads(ran("check", path, "--json"))
    assert (report["legal"], report["period"], report["bound"], report["gap"]) == (True, 30, 30, 0.0)
    assert max(report["peak_memory"].values()) <= 6
    assert set(report["peak_memory"]) == set(report["bubble"]) == {str(server) for server in load_plan(path).programs}


def test_plan_reports_json_from_a_job_file_with_flags_on_top(run, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text("pipelines = 2\nstages = 4\nmicro_batches = 6\ncosts.optimizer = 3\nmemory.limit = [4, 3, 2, 1]\n")
    status, out, err = run("plan", job, "-D", 3, "--backward", "fused", "--optimizer", "global", "--json")
    report = json.loads(out)
    assert "bound" in err
    assert status == 0
    assert (report["makespan"], report["period"], report["status"]) == (27, 30, "optimal")


def test_an_illegal_plan_is_named_with_its_rows_and_exits_1(run, plan_file):
    plan_file.write_text(plan_file.read_text().replace('"0F0.1"', '"0F0.9"'))
    status, out, _ = run("check", plan_file)
    assert status == 1
    assert out.startswith("ILLEGAL (instructions): W0_0[2]: 0F0.9: there is no micro-batch 0.9")
    assert "> W0_0[2] 0F0.9" in out
    status, out, _ = run("check", plan_file, "--json")
    report = json.loads(out)
    assert status == 1
    assert report["legal"] is False
    assert report["violations"][0]["index"] == 2


def test_a_false_claim_exits_1(run, plan_file):
    text = plan_file.read_text()
    plan_file.write_text(text.replace('"baseline": 30', '"baseline": 60'))
    status, out, _ = run("check", plan_file)
    assert status == 1
    assert out == "ILLEGAL (claims): the plan says baseline 60, and fault-free 1F1B takes 30\n"


def test_a_bound_of_the_solver_is_said_to_be_unverified(run, ran, tmp_path):
    path = tmp_path / "plan.json"
    job = job_file(tmp_path, stages=3, micro_batches=4, limit=2)
    assert run("plan", job, "--dead", "W0_0", "--moves", "2000", "--prove", "60s", "-o", path)[0] == 0
    out = ran("check", path)
    assert "bound 28 slots by exact solver" in out
    assert "the bound is not verified: the rules prove 27" in out
    assert json.loads(run("check", path, "--json")[1])["bound_verified"] is False


def test_plans_are_compared_as_diff_does(run, plan_file, tmp_path):
    other = tmp_path / "other.json"
    save_plan(paper_plan(failed=()), other)
    assert run("check", plan_file, "--against", plan_file) == (0, "The plans are equal.\n", "")
    status, out, _ = run("check", plan_file, "--against", other)
    assert status == 1
    assert "failed: W1_2 -> none" in out
    status, out, _ = run("check", plan_file, "--against", other, "--json")
    assert status == 1
    assert "W1_2" in json.loads(out)["programs"]


def test_a_plan_is_written_as_csv_to_the_console_or_a_file(run, ran, plan_file, tmp_path):
    out = ran("show", plan_file, "--csv", "-")
    assert out.startswith("server,chunk,op,home,micro_batch,start,end\nW0_0,0,F,0,0,0,1\n")
    assert run("show", plan_file, "--csv", tmp_path / "plan.csv")[1] == f"written to {tmp_path / 'plan.csv'}\n"
    assert (tmp_path / "plan.csv").read_text() == out


def test_a_catalogue_gives_the_plan_for_some_dead_servers(run, ran, refused, tmp_path):
    path, plan = tmp_path / "catalogue.zip", tmp_path / "plan.json"
    status, _, err = run("catalogue", *PAPER, "--failures", "2", "--moves", "500", "-o", path)
    assert status == 0
    assert "15/15" in err
    assert "acts as" in ran("plan", "--catalogue", path, "--dead", "W0_3,W1_2", "-o", plan)
    assert check_plan(load_plan(plan)) == ()
    report = json.loads(ran("plan", *PAPER, "--catalogue", path, "--dead", "W0_3", "--json"))
    assert (report["dead"], report["roles"]) == (["W0_3"], {})
    assert "failures 3" in refused("plan", "--catalogue", path, "--dead", "W0_0,W1_1,W2_2")


def test_a_duration_without_a_unit_is_of_seconds(run, tmp_path):
    path = tmp_path / "plan.json"
    assert run("plan", *PAPER, "--budget", "5", "-o", path)[0] == 0
    assert load_plan(path).provenance.budget == "5 s"


def test_ctrl_c_keeps_the_best_plan(tmp_path):
    path = tmp_path / "plan.json"
    # The bound of this job is out of reach, so the search goes on until it is interrupted.
    shape = [str(job_file(tmp_path, limit=4)), "--dead", "W1_2", "--budget", "1h", "-o", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", "from recycle.cli import main; main()", "plan", *shape],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # What was started in the background of a shell ignores Ctrl-C, and so does what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    # On a busy machine it says first that it is planning.
    assert any("period" in line for line in process.stderr)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert "above optimal" in out
    assert check_plan(load_plan(path)) == ()


def test_nothing_goes_on_planning_when_a_catalogue_is_killed(tmp_path):
    words = [str(job_file(tmp_path, limit=4)), "--failures", "2", "--budget", "2s", "-o", str(tmp_path / "plans.zip")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", "from recycle.cli import main; main()", "catalogue", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    workers: list[int] = []
    while not workers:
        assert process.poll() is None
        workers = children(process.pid)
        time.sleep(0.05)
    process.kill()
    process.wait()
    # Who goes on planning has more than a dozen plans left to make.
    wait_until(lambda: not any(map(is_running, workers)))


def test_nothing_is_searched_for_garbage_at_the_end():
    last = "import atexit, gc; atexit.register(lambda: print('frozen:', gc.get_freeze_count() > 0))"
    words = [sys.executable, "-c", f"{last}; from recycle.cli import main; main()", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "frozen: True"


ENDING = """
import atexit, sys
from recycle.cli import main, verbs
class Kept:
    def __del__(self):
        sys.stderr.write("taken apart")
sys.modules["torch"] = Kept()
def act(prog_name, standalone_mode):
    from recycle.errors import RunFailed
    atexit.register(lambda: print("the rest is done"))
    {act}
verbs.group = act
{call}
"""


@pytest.mark.parametrize(
    ("act", "status", "said"),
    [
        ("return 0", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise RunFailed('no more')", 1, "recycle: no more\n"),
        ("raise AssertionError('a mistake')", 1, "AssertionError: a mistake\ntaken apart"),
        ("sys.exit('a text')", 1, "a text\ntaken apart"),
    ],
)
def test_a_process_with_torch_in_it_is_not_taken_apart_at_its_end(act, status, said):
    program = ENDING.format(act=act, call="main()")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "the rest is done\n")
    assert done.stderr.endswith(said)
    assert ("taken apart" in done.stderr) == ("taken apart" in said)


def test_a_program_that_calls_a_command_goes_on_and_ends_as_it_likes():
    calls = "try:\n    main(goes_on=True)\nexcept SystemExit:\n    sys.exit(5)"
    program = ENDING.format(act="return 0", call=calls)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "the rest is done\n")


def test_the_table_of_many_servers_has_the_places_that_live_and_all_limits(run, tmp_path):
    cuts = [[chunk] for chunk in range(34)]
    crews = [[*cuts[:32], [32, 33]], cuts]
    lists = ["".join(f"{{chunks = {chunks}}}, " for chunks in crew) for crew in crews]
    text = "".join(f"[[layout]]\nmicro_batches = 1\nservers = [{servers}]\n" for servers in lists)
    (tmp_path / "job.toml").write_text(text)
    assert run("plan", tmp_path / "job.toml", "--dead", "W1_33", "--moves", 1, "-o", tmp_path / "p.json")[0] == 0
    status, out, _ = run("check", tmp_path / "p.json")
    assert status == 0
    rows = [line.split("  ") for line in map(str.strip, out.splitlines()) if line.startswith("stage ")]
    assert [row[0].strip() for row in rows] == [f"stage {place}" for place in range(33)]
    limits = {str(placed(load_plan(tmp_path / "p.json").job, Server(pipeline, 32)).limit) for pipeline in range(2)}
    assert len(limits) == 2
    assert all(limit in rows[-1][-1] for limit in limits)


def test_pipelines_that_are_not_alike_are_planned_checked_drawn_and_exported(run, tmp_path):
    job, plan = tmp_path / "job.toml", tmp_path / "plan.json"
    text = (Path(__file__).parent.parent / "docs" / "reference" / "job-file.md").read_text()
    job.write_text(text.split('```toml\nname = "one server lost"')[1].split("```")[0])
    picture = ("show", plan, "--html", tmp_path / "plan.html")
    for command in (
        ("plan", job, "--dead", "W0_1", "--moves", "10", "-o", plan),
        ("check", plan),
        ("show", plan),
        picture,
    ):
        assert run(*command)[0] == 0
    assert "W1_1,2,F,0,0," not in run("show", plan, "--csv", "-")[1]
    assert "\nW1_0,2,F,0,0," in run("show", plan, "--csv", "-")[1]
    (tmp_path / "model.toml").write_text("distributed_optimizer = true\n")
    for command, what in (
        (("explain", plan), "an explanation"),
        (("train", job, "--model", tmp_path / "model.toml", "-o", tmp_path / "run"), "distributed_optimizer"),
    ):
        status, _, err = run(*command)
        assert (status, f"layout: {what} takes pipelines that are alike" in err) == (2, True)


def test_a_baseline_that_lacks_memory_stands_beside_one_that_has_it(run, tmp_path):
    shape = {"pipelines": 3, "stages": 4, "micro_batches": 8, "optimizer": 0}
    _, tight, _ = run("plan", job_file(tmp_path, limit=3, **shape), "--moves", 1, "-o", tmp_path / "tight.json")
    _, enough, _ = run("plan", job_file(tmp_path, limit=4, **shape), "--moves", 1)
    period = re.search(r"of fault-free 1F1B \(period (\d+) slots\)", enough)[1]
    within, wanted = re.search(r"within this memory \(period (\d+) slots\), .* it wants \(period (\d+)", tight).groups()
    assert wanted == period
    assert int(within) > int(period)
    assert "within this memory" not in enough
    assert "1F1B with the memory that it wants" in run("check", tmp_path / "tight.json")[1]
    assert "of fault-free 1F1B within this memory" in run("show", tmp_path / "tight.json", "--html", "-")[1]
    run("catalogue", job_file(tmp_path, limit=3, **shape), "--failures", 1, "--moves", 1, "-o", tmp_path / "c.zip")
    watched = try_plans(tmp_path / "c.zip")["/plan"].answer({})
    assert b"% of fault-free 1F1B within this memory)" in watched
    more = json.loads(try_plans(tmp_path / "c.zip")["/plan"].answer({"dead": "W0_0,W1_1"}))
    assert [each["dead"] for each in more["document"]["panels"][0]["rows"]].count(True) == 2
    _, said, _ = run("plan", "--catalogue", tmp_path / "c.zip")
    assert "1F1B with the memory that it wants" in said
    figures = json.loads(run("plan", job_file(tmp_path, limit=3, **shape), "--moves", 1, "--json")[1])
    assert (figures["baseline"], figures["unlimited_baseline"]) == (int(within), int(wanted))
