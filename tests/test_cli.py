import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from harness.examples import paper_plan
from recycle.cli import VERBS
from recycle.job import Server
from recycle.plan.checker import check_plan
from recycle.plan.document import load_plan, save_plan

PAPER = ["-D", "3", "-P", "4", "-M", "6", "--optimizer-cost", "3"]


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    save_plan(paper_plan(), path)
    return path


def test_help_names_every_verb_and_imports_neither_solver_nor_torch(run):
    status, out, _ = run("--help")
    assert status == 0
    assert all(verb in out for verb in VERBS)
    code = """
import sys
sys.argv = ["recycle", "--help"]
from recycle.cli import main
try:
    main()
except SystemExit:
    pass
sys.exit(bool({"ortools", "torch", "rich", "recycle.planner"} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(run, verb):
    status, out, _ = run(verb, "--help")
    assert status == 0
    assert out.startswith(f"Usage: recycle {verb}")


def test_plan_then_check(run, tmp_path):
    path = tmp_path / "plan.json"
    status, out, _ = run("plan", *PAPER, "--limit", "6", "--dead", "W1_2", "--moves", "5000", "-o", path)
    assert status == 0
    assert "dead       W1_2\n" in out
    assert "period     30 slots (optimal" in out
    status, out, _ = run("check", path)
    assert status == 0
    assert "LEGAL, lowered form, dead: W1_2\n" in out
    assert "gap 0.00%" in out
    status, out, _ = run("check", path, "--json")
    report = json.loads(out)
    assert (report["legal"], report["period"], report["bound"], report["gap"]) == (True, 30, 30, 0.0)
    assert max(report["peak_memory"].values()) <= 6
    assert set(report["peak_memory"]) == set(report["bubble"]) == {str(server) for server in load_plan(path).programs}


def test_plan_reports_json_from_a_job_file_with_flags_on_top(run, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text("pipelines = 3\nstages = 4\nmicro_batches = 6\n[costs]\noptimizer = 3\n")
    status, out, _ = run("plan", job, "--limit", "4,3,2,1", "--backward", "fused", "--optimizer", "global", "--json")
    report = json.loads(out)
    assert status == 0
    assert (report["makespan"], report["period"], report["status"]) == (27, 30, "optimal")


def test_progress_goes_to_standard_error(run):
    _, out, err = run("plan", *PAPER, "--dead", "W1_2", "--moves", "100", "--json")
    assert json.loads(out)["dead"] == ["W1_2"]
    assert "bound" in err


def test_compute_form_can_be_lowered_later(run, tmp_path):
    compute, lowered = tmp_path / "compute.json", tmp_path / "lowered.json"
    run("plan", *PAPER, "--dead", "W1_2", "--moves", "2000", "--form", "compute", "-o", compute)
    status, _, _ = run("lower", compute, "-o", lowered)
    assert status == 0
    plan = load_plan(lowered)
    assert plan.form == "lowered"
    assert check_plan(plan) == ()
    status, _, err = run("lower", lowered, "-o", lowered)
    assert status == 2
    assert "lowered already" in err


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


def test_a_bound_of_the_solver_is_said_to_be_unverified(run, tmp_path):
    path = tmp_path / "plan.json"
    job = ["-D", "3", "-P", "3", "-M", "4", "--optimizer-cost", "3", "--limit", "2"]
    assert run("plan", *job, "--dead", "W0_0", "--moves", "2000", "--prove", "60s", "-o", path)[0] == 0
    status, out, _ = run("check", path)
    assert status == 0
    assert "bound 28 slots by exact solver" in out
    assert "the bound is not verified: the rules prove 27" in out
    assert json.loads(run("check", path, "--json")[1])["bound_verified"] is False


def test_diff_exits_like_diff(run, plan_file, tmp_path):
    other = tmp_path / "other.json"
    save_plan(paper_plan(failed=()), other)
    assert run("diff", plan_file, plan_file) == (0, "The plans are equal.\n", "")
    status, out, _ = run("diff", plan_file, other)
    assert status == 1
    assert "failed: ['W1_2'] -> []" in out
    status, out, _ = run("diff", plan_file, other, "--json")
    assert status == 1
    assert "W1_2" in json.loads(out)["programs"]


def test_export_writes_csv_to_the_console_or_a_file(run, plan_file, tmp_path):
    status, out, _ = run("export", plan_file)
    assert status == 0
    assert out.startswith("server,chunk,op,home,micro_batch,start,end\nW0_0,0,F,0,0,0,1\n")
    assert run("export", plan_file, "-o", tmp_path / "plan.csv")[1] == f"written to {tmp_path / 'plan.csv'}\n"
    assert (tmp_path / "plan.csv").read_text() == out
    status, _, err = run("export", plan_file, "--format", "torch")
    assert status == 2
    assert "re-routed" in err


def test_catalogue_and_lookup(run, tmp_path):
    path, plan = tmp_path / "catalogue.zip", tmp_path / "plan.json"
    status, out, err = run("catalogue", *PAPER, "--failures", "2", "--moves", "500", "-o", path)
    assert status == 0
    assert "15/15" in err
    status, out, _ = run("lookup", path, "--dead", "W0_3,W1_2", "-o", plan)
    assert status == 0
    assert "acts as" in out
    assert check_plan(load_plan(plan)) == ()
    status, out, _ = run("lookup", path, "--dead", "W0_3", "--json")
    report = json.loads(out)
    assert report["dead"] == ["W0_3"]
    assert report["counts"] == [0, 0, 0, 1]
    assert report["roles"] == {}
    status, _, err = run("lookup", path, "--dead", "W0_0,W1_1,W2_2")
    assert status == 2
    assert "--failures 3" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dead", "W9_9"], "server W9_9: this job has pipelines 0 to 2"),
        (["--dead", "nobody"], "server 'nobody': a server is written"),
        (["--dead", "W0_1,W1_1,W2_1"], "stage 1 has no live server"),
        (["--limit", "0"], "limit of stage 0 is 0.*the least limit that works is 1"),
        (["--held", "5", "--limit", "4"], "the least limit that works is 5"),
        (["--forward-cost", "nan"], "costs.forward is nan"),
        (["--forward-cost=-1"], "forward of stage 0 is -1"),
        (["--forward-cost", "1,2"], "costs.forward has 2 values"),
        (["--forward-cost", "x"], "'x' is no number"),
        (["-M", "0"], "micro_batches is 0"),
        (["--budget", "2x"], "'2x' is no duration"),
        (["-D", "100000", "-P", "1000"], "100000 pipelines x 1000 stages x 6 .* 1800000000 tasks .* 10000000 at most"),
        (["--nothing"], "--nothing"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(run, tmp_path, arguments, message):
    import re

    path = tmp_path / "plan.json"
    path.write_text("what was there before")
    status, out, err = run("plan", *PAPER, *arguments, "-o", path)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert path.read_text() == "what was there before"


def test_a_duration_without_a_unit_is_of_seconds(run, tmp_path):
    path = tmp_path / "plan.json"
    assert run("plan", *PAPER, "--budget", "5", "-o", path)[0] == 0
    assert load_plan(path).provenance.budget == "5 s"


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("catalogue", ["-D", "100000", "-P", "1000", "-M", "1", "-o", "out.zip"], "300000000 tasks"),
        (
            "catalogue",
            ["-D", "4", "-P", "64", "-M", "4", "--failures", "9", "-o", "out.zip"],
            "--failures 9: 64 stages",
        ),
        ("train", ["-D", "100000", "-P", "1000", "-M", "1", "-o", "out"], "300000000 tasks"),
    ],
)
def test_what_is_too_large_to_plan_is_refused_before_anything_is_made(
    run, tmp_path, monkeypatch, verb, arguments, message
):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(verb, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["check"],
        ["explain"],
        ["export"],
        ["lower", "-o", "out.json"],
        ["show", "--strict"],
        ["train", *PAPER, "-o", "out", "--plan"],
    ],
    ids=" ".join,
)
def test_an_illegal_plan_exits_1_and_writes_nothing(run, plan_file, tmp_path, monkeypatch, arguments):
    plan_file.write_text(plan_file.read_text().replace('"0F0.1"', '"0F0.9"'))
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*arguments, plan_file)
    assert status == 1
    assert "there is no micro-batch 0.9" in out + err
    assert err.count("\n") == (arguments != ["check"])
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_that_deadlocks_has_no_picture_and_exits_1(run, plan_file, tmp_path):
    plan = paper_plan()
    first = tuple(sorted(plan.programs[Server(0, 0)], key=lambda each: each.op.name))
    save_plan(msgspec.structs.replace(plan, programs={**plan.programs, Server(0, 0): first}), plan_file)
    assert run("show", plan_file)[0] == 0
    status, _, err = run("show", plan_file, "--svg", tmp_path / "plan.svg")
    assert status == 1
    assert "deadlocks" in err
    assert not (tmp_path / "plan.svg").exists()


@pytest.mark.parametrize("verb", ["check", "export", "lower"])
@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"format": "recycle plan", "version": 99}'])
def test_a_broken_plan_file_exits_2_with_its_name(run, tmp_path, verb, content):
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_text(content)
    status, out, err = run(verb, path, *(["-o", tmp_path / "out.json"] if verb == "lower" else []))
    assert status == 2
    assert out == ""
    assert "broken.json" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("words", "kind", "wanted"),
    [
        (["check", "job.toml"], "a job file", "a plan is needed: recycle plan makes one"),
        (["explain", "plans.zip"], "a catalogue", "a plan is needed: recycle plan makes one"),
        (["show", "plans.zip"], "a catalogue", "recycle lookup takes one from a catalogue"),
        (["plan", "plan.json"], "a plan", "a job file is needed: docs/job.md has its keys"),
        (["plan", "plans.zip"], "a catalogue", "a job file is needed"),
        (["lookup", "plan.json"], "a plan", "a catalogue is needed: recycle catalogue makes one"),
        (["lookup", "job.toml"], "a job file", "a catalogue is needed: recycle catalogue makes one"),
        (["losses", "plan.json"], "a plan", "a recording is needed: recycle train writes them"),
        (["study", "job.toml", "--trace", "job.toml"], "a job file", "a fault file is needed: docs/faults.md"),
    ],
)
def test_a_file_of_another_kind_is_named_as_such(run, tmp_path, monkeypatch, words, kind, wanted):
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text("pipelines = 3\nstages = 4\nmicro_batches = 6\n")
    run("plan", *PAPER, "--moves", "10", "-o", "plan.json")
    run("catalogue", *PAPER, "--failures", "0", "--moves", "10", "-o", "plans.zip")
    status, _, err = run(*words)
    assert status == 2
    assert f"{words[-1]}: this is {kind}, and " in err
    assert wanted in err


def test_a_folder_is_no_plan(run, tmp_path):
    status, _, err = run("check", tmp_path)
    assert status == 2
    assert f"{tmp_path}: this is a folder, and a file is needed" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", *PAPER, "-o", "plan.svg"], "plan.svg: give a name that ends in .json"),
        (["plan", *PAPER, "-o", "nowhere/plan.json"], "nowhere/plan.json: there is no folder nowhere; make it first"),
        (["plan", *PAPER, "-o", "folder.json"], "folder.json: there is a folder of this name"),
        (["catalogue", *PAPER, "-o", "plan.json"], "plan.json: give a name that ends in .zip"),
        (["show", "plan.json", "--html", "plan.json"], "plan.json: give a name that ends in .html"),
        (["show", "plan.json", "--figure", "plan.svg"], "plan.svg: give a name that ends in .png or .pdf"),
        (["profile", *PAPER, "-o", "plan.json"], "plan.json: give a name that ends in .toml"),
        (["plann", "job.toml"], "there is no verb 'plann': did you mean plan?"),
        (["quite-another"], "there is no verb 'quite-another': there are plan, check,"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_cannot_be_written_or_called_is_said_before_any_work(run, plan_file, monkeypatch, words, message):
    monkeypatch.chdir(plan_file.parent)
    (plan_file.parent / "folder.json").mkdir()
    before = plan_file.read_bytes()
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert message in err
    assert plan_file.read_bytes() == before
    assert {each.name for each in plan_file.parent.iterdir()} == {"plan.json", "folder.json"}


def test_without_a_verb_there_is_help(run):
    status, out, _ = run()
    assert status == 0
    assert out == run("--help")[1]


def test_without_a_job_the_remedy_is_said(run):
    status, _, err = run("plan")
    assert status == 2
    assert "give a job file, or at least --pipelines" in err


def test_ctrl_c_keeps_the_best_plan(tmp_path):
    path = tmp_path / "plan.json"
    # The bound of this job is out of reach, so the search goes on until it is interrupted.
    shape = [*PAPER, "--limit", "4", "--dead", "W1_2", "--budget", "1h", "-o", str(path)]
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
    assert "period" in process.stderr.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "above optimal" in out
    assert check_plan(load_plan(path)) == ()


def test_nothing_goes_on_planning_when_a_catalogue_is_killed(tmp_path):
    words = [*PAPER, "--limit", "4", "--failures", "2", "--budget", "2s", "-o", str(tmp_path / "plans.zip")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", "from recycle.cli import main; main()", "catalogue", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers: list[Path] = []
    while not workers:
        assert process.poll() is None
        started = [Path("/proc") / pid for pid in children.read_text().split()]
        workers = [each for each in started if b"spawn_main" in (each / "cmdline").read_bytes()]
        time.sleep(0.05)
    process.kill()
    process.wait()
    # Who goes on planning has more than a dozen plans left to make.
    deadline = time.monotonic() + 60
    while any(each.exists() for each in workers):
        assert time.monotonic() < deadline, "a worker outlives its catalogue"
        time.sleep(0.05)


@pytest.mark.parametrize("verb", ["plan", "catalogue", "train", "study", "profile"])
def test_the_help_of_a_verb_begins_with_what_is_its_own(run, verb):
    _, out, _ = run(verb, "--help")
    own, of_job = out.split("Options that describe a job")
    assert "--output" in own
    assert "--micro-batches" in of_job
    assert "--micro-batches" not in own.split("Options:")[1]


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_is_on_one_screen_where_that_can_be(run, verb):
    _, out, _ = run(verb, "--help")
    assert len(out.splitlines()) <= (80 if verb == "train" else 50)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_calls_what_an_option_takes_by_words(run, verb):
    _, out, _ = run(verb, "--help")
    assert not re.search(r"PARSE_|RANGE|FUNC", out)


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("torch", ["train", "-D", "2", "-P", "2", "-M", "2"], "train"),
        ("torch", ["profile", "-D", "2", "-P", "2", "-M", "2", "-o", "profiled.toml"], "train"),
        ("torch", ["join", "run"], "train"),
        # Greedy and annealed plans of this job stay above the bound, so that the solver is asked.
        (
            "ortools",
            [
                "plan",
                "-D",
                "3",
                "-P",
                "4",
                "-M",
                "6",
                "--dead",
                "W1_2,W0_1",
                "--limit",
                "4",
                "--moves",
                "1",
                "--prove",
                "1s",
            ],
            "plan",
        ),
    ],
)
def test_what_is_not_installed_is_named_with_what_brings_it(tmp_path, module, words, extra):
    code = f"import sys; sys.modules[{module!r}] = None; from recycle.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last == f"recycle: {module} is not installed: pip install 'recycle-pipeline[{extra}]' brings it"


@pytest.mark.parametrize(("words", "completed"), [("recycle cata", "catalogue"), ("recycle plan --rout", "--routing")])
def test_shells_complete_verbs_and_options(words, completed):
    command = [sys.executable, "-c", "from recycle.cli import main; main()"]
    position = str(len(words.split()) - 1)
    variables = {"_RECYCLE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": position}
    environment = {**os.environ, **variables, "PYTHONPATH": str(Path(__file__).parent.parent)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [f"plain,{completed}"]


def test_nothing_is_searched_for_garbage_at_the_end():
    last = "import atexit, gc; atexit.register(lambda: print('frozen:', gc.get_freeze_count() > 0))"
    words = [sys.executable, "-c", f"{last}; from recycle.cli import main; main()", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "frozen: True"


def test_pipelines_that_are_not_alike_are_planned_checked_drawn_and_exported(run, tmp_path):
    job, plan = tmp_path / "job.toml", tmp_path / "plan.json"
    text = (Path(__file__).parent.parent / "docs" / "job.md").read_text()
    job.write_text(text.split('```toml\nname = "one server lost"')[1].split("```")[0])
    picture = ("show", plan, "--html", tmp_path / "plan.html")
    for command in (
        ("plan", job, "--dead", "W0_1", "--moves", "10", "-o", plan),
        ("check", plan),
        ("show", plan),
        picture,
    ):
        assert run(*command)[0] == 0
    assert "W1_1,2,F,0,0," not in run("export", plan)[1]
    assert "\nW1_0,2,F,0,0," in run("export", plan)[1]
    for command, what in (
        (("explain", plan), "an explanation"),
        (("train", job, "--distributed-optimizer"), "--distributed-optimizer"),
    ):
        status, _, err = run(*command)
        assert (status, f"layout: {what} takes pipelines that are alike" in err) == (2, True)


def test_explain_says_whether_copies_have_room(run, plan_file):
    # Servers that do a dead one's work have no bubbles.
    status, out, _ = run("explain", plan_file, "--copied", 1)
    assert status == 0
    assert "there is not room for all; the period is" in out.replace("\n", " ")
    save_plan(paper_plan(failed=()), plan_file)
    status, out, _ = run("explain", plan_file, "--copied", 2, "--json")
    assert status == 0
    assert json.loads(out)["copies"].endswith("bubbles and idle links have room, the period stays 24 slots.")


def test_a_plan_copies_the_state_where_that_is_asked_for(run, tmp_path):
    path, compute = tmp_path / "plan.json", tmp_path / "compute.json"
    status, out, _ = run("plan", *PAPER, "--moves", 100, "--copied", "2,1,3", "-o", path)
    assert status == 0
    what = "2 pieces of each server's part, 1 slot each to host memory, 3 slots over a link; period unchanged"
    assert what in " ".join(out.split())
    assert what in " ".join(run("check", path)[1].split())
    assert json.loads(run("check", path, "--json")[1])["copies"]["delay"] == 0
    status, _, err = run("explain", path, "--copied", 2)
    assert (status, "this plan copies the state already" in err) == (2, True)
    run("plan", *PAPER, "--moves", 100, "--form", "compute", "-o", compute)
    run("lower", compute, "--copied", "2,1,3", "-o", tmp_path / "lowered.json")
    assert load_plan(tmp_path / "lowered.json").programs == load_plan(path).programs
    for wrong in ("0", "1,2,3,4", "one"):
        status, _, err = run("plan", *PAPER, "--copied", wrong)
        assert (status, "give how many pieces" in err) == (2, True)
    status, _, err = run("plan", *PAPER, "--copied", 2, "--form", "compute")
    assert (status, "--copied: a plan of compute form" in err) == (2, True)
