"""What cannot be used is one line that names it, before anything is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from harness.paths import python_path
from recycle.cli.parameters import FAULTS, InputPath, OutputFile, OutputFolder
from recycle.cli.verbs import VERBS, group
from tests.test_cli import PAPER

JOB = ("--ranks", "8", "pretrain_gpt.py", "--pipeline-model-parallel-size", "4", "--micro-batch-size", "1")
LAYOUT = "--pipeline-model-parallel-layout"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PAPER, "--dead", "W9_9"], "server W9_9: this job has pipelines 0 to 2"),
        ([*PAPER, "--dead", "nobody"], "server 'nobody': a server is written"),
        ([*PAPER, "--dead", "W0_1,W1_1,W2_1"], "stage 1 has no live server"),
        (["-D", "3", "-P", "4", "-M", "0"], "micro_batches is 0"),
        ([*PAPER, "--budget", "2x"], "'2x' is no duration"),
        (
            ["-D", "100000", "-P", "1000", "-M", "6"],
            "100000 pipelines x 1000 stages x 6 .* 1800000000 tasks .* 10000000",
        ),
        ([*PAPER, "--nothing"], "--nothing"),
        ([*PAPER, "--dead", " ,,"], "' ,,' names no server; write them as W1_2,W0_3"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(refused, tmp_path, arguments, message):

    path = tmp_path / "plan.json"
    path.write_text("what was there before")
    err = refused("plan", *arguments, "-o", path)
    assert re.search(message, err), err
    assert path.read_text() == "what was there before"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            "costs.forward = 0\ncosts.input_gradient = 0\ncosts.weight_gradient = 0",
            "costs.forward, input_gradient and weight_gradient are 0 at every stage; give one a time",
        ),
        ("costs.forward = 1e300", "forward of stage 0 is 1e300: the largest is 1000000000000; give less"),
        ("costs.forward = -1e300", "forward of stage 0 is -1e300: "),
    ],
)
def test_a_wrong_key_of_a_job_file_is_one_line(refused, tmp_path, keys, message):
    job = tmp_path / "job.toml"
    job.write_text(f"pipelines = 3\nstages = 4\nmicro_batches = 6\n{keys}\n")
    err = refused("plan", job, "-o", tmp_path / "plan.json")
    assert re.search(message, err), err
    assert [each.name for each in tmp_path.iterdir()] == ["job.toml"]


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("catalogue", ["-D", "100000", "-P", "1000", "-M", "1", "-o", "out.zip"], "300000000 tasks"),
        ("catalogue", ["-D", "4", "-P", "64", "-M", "4", "--failures", "9", "-o", "out.zip"], "failures 9: 64 stages"),
        ("train", ["-D", "100000", "-P", "1000", "-M", "1", "-o", "out"], "300000000 tasks"),
    ],
)
def test_what_is_too_large_to_plan_is_refused_before_anything_is_made(
    refused, tmp_path, monkeypatch, verb, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert message in refused(verb, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [["check"], ["explain"], ["show", "--csv", "out.csv"], ["train", *PAPER, "-o", "out", "--plan"]],
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


@pytest.mark.parametrize(
    ("words", "kind", "wanted"),
    [
        (["check", "job.toml"], "a job file", "a plan is needed: recycle plan makes one"),
        (["explain", "plans.zip"], "a catalogue", "a plan is needed: recycle plan makes one"),
        (["show", "plans.zip"], "a catalogue", "recycle plan --catalogue takes one from a catalogue"),
        (["plan", "plans.zip"], "a catalogue", "a job file is needed"),
        (["plan", "--catalogue", "plan.json"], "a plan", "a catalogue is needed: recycle catalogue makes one"),
        (["plan", "--catalogue", "job.toml"], "a job file", "a catalogue is needed: recycle catalogue makes one"),
        (["show", "--losses", "a.svg", "plan.json"], "a plan", "a recording is needed: recycle train writes them"),
        (
            ["study", "job.toml", "--trace", "job.toml"],
            "a job file",
            "a fault file is needed: docs/reference/faults.md",
        ),
    ],
)
def test_a_file_of_another_kind_is_named_as_such(run, refused, tmp_path, monkeypatch, words, kind, wanted):
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text("pipelines = 3\nstages = 4\nmicro_batches = 6\n")
    run("plan", *PAPER, "--moves", "10", "-o", "plan.json")
    run("catalogue", *PAPER, "--failures", "0", "--moves", "10", "-o", "plans.zip")
    err = refused(*words)
    assert f"{words[-1]}: this is {kind}, and " in err
    assert wanted in err


@pytest.mark.parametrize("words", [["check"], ["show"], ["show", "--losses", "a.svg"], ["watch"], ["kill"]])
def test_a_path_that_cannot_be_asked_for_is_one_line(refused, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    err = refused(*words, "a" * 300, *["W0_0"] * (words == ["kill"]))
    assert re.match(r"recycle: a{300}.*: (cannot be|there is no).*", err)


def test_a_folder_is_no_plan(refused, tmp_path):
    assert f"{tmp_path}: this is a folder, and a file is needed" in refused("check", tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", *PAPER, "-o", "plan.svg"], "plan.svg: give a name that ends in .json"),
        (["plan", *PAPER, "-o", "nowhere/plan.json"], "nowhere/plan.json: there is no folder nowhere; make it first"),
        (["plan", *PAPER, "-o", "folder.json"], "folder.json: cannot be written: there is a folder of this name"),
        (["catalogue", *PAPER, "-o", "plan.json"], "plan.json: give a name that ends in .zip"),
        (["show", "plan.json", "--html", "plan.json"], "plan.json: give a name that ends in .html"),
        (["plan", *PAPER, "-o", "/proc/plan.json"], "/proc/plan.json: cannot be written: No such file"),
        (["show", "plan.json", "--html", "/proc/a.html"], "/proc/a.html: cannot be written: No such file"),
        (["train", *PAPER, "-o", "/proc/a/b"], "/proc/a/b: cannot be written: No such file"),
        (["train", *PAPER, "-o", "plan.json"], "plan.json: cannot be written: Not a directory"),
        (["train", *PAPER, "-o", "a" * 300], "cannot be written: File name too long"),
        (["train", "-", "-o", "-"], "-: a folder is written, and standard output is none; give it a name"),
        (["train", *PAPER, "-o", "plan.json/a"], "plan.json/a: cannot be written: Not a directory"),
        (["plann", "job.toml"], "there is no verb 'plann': did you mean plan?"),
        (["quite-another"], "there is no verb 'quite-another': there are plan, show,"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_cannot_be_written_or_called_is_said_before_any_work(refused, plan_file, monkeypatch, words, message):
    monkeypatch.chdir(plan_file.parent)
    (plan_file.parent / "folder.json").mkdir()
    before = plan_file.read_bytes()
    assert message in refused(*words)
    assert plan_file.read_bytes() == before
    assert {each.name for each in plan_file.parent.iterdir()} == {"plan.json", "folder.json"}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["train", *PAPER], ["plan.json", "run.json", "join.json", "plans.zip"]),
    ],
    ids=["train"],
)
def test_a_folder_in_the_place_of_a_file_of_an_output_is_said_before_any_work(refused, tmp_path, words, names):
    for name in names:
        output = tmp_path / name
        (output / name).mkdir(parents=True)
        err = refused(*words, "-o", output)
        assert f"{output / name}: cannot be written: there is a folder of this name; give another place" in err
        assert [each.name for each in output.iterdir()] == [name]


def test_a_file_in_the_place_of_the_folder_of_checkpoints_is_said_before_any_work(refused, tmp_path):
    (tmp_path / "checkpoints").touch()
    err = refused("train", *PAPER, "-o", tmp_path)
    assert f"{tmp_path / 'checkpoints'}: cannot be written: Not a directory" in err


PATHS = [
    (verb, option)
    for verb in VERBS
    for option in group.get_command(click.Context(group), verb).params
    if isinstance(option.type, InputPath | OutputFile | OutputFolder) or option.type is FAULTS
]


@pytest.mark.parametrize(("verb", "option"), PATHS, ids=lambda each: getattr(each, "name", each))
def test_an_empty_path_is_not_that_of_this_folder(refused, tmp_path, monkeypatch, verb, option):
    """It is what a variable of the shell stands for that is not set."""
    monkeypatch.chdir(tmp_path)
    words = ["", "W0_0"] if isinstance(option, click.Argument) else [f"{option.opts[-1]}=", "a", "W0_0"]
    err = refused(verb, *words)
    assert "'' is no path; give the name of a file or folder" in err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "words", [["study", *PAPER, "--trace"], ["watch", "run", "--address"]], ids=lambda each: each[0]
)
def test_an_empty_trace_or_address_is_not_the_usual_one(refused, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recycle.cli.watch.PageServer", lambda *_: pytest.fail("it listens"))
    assert f"'{words[-1]}': it is empty; give a value, or leave the option out" in refused(*words, "")


FOLDERS = [("pipe", *each) for each in PATHS if isinstance(each[1].type, OutputFolder)]


@pytest.mark.parametrize(
    ("name", "verb", "option"),
    [*(("circle", *each) for each in PATHS), *FOLDERS],
    ids=lambda each: getattr(each, "name", each),
)
def test_a_link_to_itself_and_a_pipe_for_a_folder_are_one_line(refused, tmp_path, monkeypatch, name, verb, option):
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    os.mkfifo("pipe")
    is_job = isinstance(option, click.Argument)
    words = [name, "W0_0"] if is_job else [f"{option.opts[-1]}={name}", *PAPER]
    # A run has a folder, and other verbs give their files names that end in a known way.
    refused(verb, *words, *(["-o", "run"] if verb == "train" and option.name != "output" else []))
    assert {each.name for each in tmp_path.iterdir()} == {"circle", "pipe"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", *PAPER, "--faults", "mtbf=1s,seed="], "give a whole number as seed"),
        (["train", *PAPER, "--faults", "mtbf=1s,sed=3"], "unknown name 'sed'; write mtbf=30s,seed=1, or a path"),
        (["train", *PAPER, "--faults", "mtbff=1s"], "unknown name 'mtbff'; write mtbf=30s,seed=1, or a path"),
        (["train", *PAPER, "--text", "."], "text: . is a folder; give a file"),
        (["doctor", *JOB, "--recycle-store", "nothing"], "store 'nothing': give etcd://HOST:PORT"),
        (["doctor", *JOB, LAYOUT, "Et|(t|)*99999999999L"], f"{LAYOUT} (t|)*99999999999: it has more than 100000"),
        (["doctor", *JOB, LAYOUT, f"Et|(t|)*{'9' * 5000}L"], f"{LAYOUT} (t|)*999"),
        (["doctor", *JOB, LAYOUT, f"E{'(t|)*40000' * 3}L"], f"{LAYOUT} E(t|)*40000(t|)*40000"),
        (["doctor", "--ranks", "40000000", *JOB[2:]], "10000000 pipelines x 4 stages x 1 micro-batches are 120000000"),
    ],
    ids=lambda each: " ".join(each)[:60] if isinstance(each, list) else "",
)
def test_what_is_too_much_or_nothing_is_one_line_before_any_work(refused, plan_file, monkeypatch, words, message):
    monkeypatch.chdir(plan_file.parent)
    err = refused(*words)
    assert message in err
    assert [each.name for each in plan_file.parent.iterdir()] == ["plan.json"]


def test_a_link_to_a_folder_that_is_not_there_is_said_before_any_work(refused, tmp_path):
    (tmp_path / "plan.json").symlink_to(tmp_path / "nowhere" / "plan.json")
    err = refused("plan", *PAPER, "-o", tmp_path / "plan.json")
    assert f"there is no folder {tmp_path / 'nowhere'}; make it first" in err


SCARCE = """
import errno, os, sys
from recycle.cli import main, verbs
def act(prog_name, standalone_mode):
    raise {error}
verbs.group = act
main()
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("MemoryError", "there is not enough memory for this command; give it more (ulimit -v), or a smaller job"),
        ("OSError(errno.EMFILE, os.strerror(errno.EMFILE))", "Too many open files; raise its limits (ulimit -a)"),
        ("OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), 'a')", "unavailable; raise its limits (ulimit -a)"),
    ],
)
def test_what_the_system_has_no_more_of_is_one_line(error, message):
    program = [sys.executable, "-c", SCARCE.format(error=error)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


def test_a_small_file_is_read_with_little_memory(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("pipelines = 1\n")
    program = (
        "import resource, sys; from pathlib import Path; from recycle.files import LARGEST, read_bytes; "
        "resource.setrlimit(resource.RLIMIT_AS, (LARGEST, LARGEST)); "
        "sys.stdout.buffer.write(read_bytes(Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (path.read_text(), "")


def test_without_a_job_the_remedy_is_said(refused):
    assert "give a job file, or at least --pipelines" in refused("plan")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("torch", ["train", "-D", "2", "-P", "2", "-M", "2"]),
        ("torch", ["join", "run"]),
        ("xxhash", ["train", "-D", "2", "-P", "2", "-M", "2"]),
        # Greedy and annealed plans of this job stay above the bound, so that the solver is asked.
        ("ortools", ["plan", "-D", "3", "-P", "4", "-M", "6", "--dead", "W1_2,W0_1", "--moves", "1", "--prove", "1s"]),
    ],
)
def test_what_is_not_installed_is_named_with_what_brings_it(tmp_path, module, words):
    (tmp_path / "run").mkdir()
    for name in ("plan.json", "run.json", "join.json"):
        (tmp_path / "run" / name).touch()
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
    assert last == f"recycle: {module} is not installed: pip install {module} brings it"


def test_without_a_folder_for_temporary_files_training_is_refused_in_one_line(tmp_path):
    size = ["--pipelines", "2", "--stages", "1", "--micro-batches", "2", "--iterations", "1"]
    # No process may write a byte, as where all disks are full.
    words = ["prlimit", "--fsize=0:0", "--", sys.executable, "-m", "harness.scripts.train", "train", *size]
    variables = {**os.environ, "PYTHONPATH": python_path(), "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    said = done.stderr.splitlines()
    assert said[-1].startswith(f"recycle: TMPDIR is {tmp_path}: no temporary file can be written there, ")
    assert "Traceback" not in done.stderr
