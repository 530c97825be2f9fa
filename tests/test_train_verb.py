"""``recycle train``: what it prints, and what it refuses."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import click
import msgspec
import pytest
import torch
from click.testing import CliRunner

from recycle.cli.join import LATE
from recycle.cli.parameters import FAULTS, RandomFaults, Saves, Timeouts
from recycle.cli.verbs import group
from recycle.control.board.run_folder import taken
from recycle.control.host.agent import FENCED
from recycle.control.store.etcd_store import EtcdStore
from recycle.errors import RunFailed, UserError
from recycle.placing.decision import OF_A_CLUSTER, Outlook
from recycle.runtime.checkpoint_folders import MANIFEST, Manifest

SCHEDULES = Path(__file__).resolve().parents[1] / "schedules"
V_SHAPED = SCHEDULES.parent / "tests" / "v-shaped.toml"
SMALL = ["--stages", "2", "--pipelines", "2", "--micro-batches", "2"]


def call(*arguments):
    return CliRunner().invoke(group, [*map(str, arguments)], catch_exceptions=False, standalone_mode=False)


def test_trains_with_a_dead_server(tmp_path, monkeypatch):
    options = ["--dead", "W1_0", "--iterations", 2, "--evaluate-every", 2, "--keep-in-memory", "copies=1"]
    result = call("train", *SMALL, *options, "-o", tmp_path / "run")
    assert re.search(r"[\d.]+ MiB are copied in every iteration, and a\s+keeper takes at most", result.output)
    assert "not kept in memory" not in result.output
    assert "dead       W1_0" in result.output
    assert "iteration 2/2: loss " in result.output
    assert re.search(r"tokens/s, \S+ \S+ each, 0 s left, 3/4 servers", result.output)
    assert "after 2 iterations: loss " in result.output
    assert (tmp_path / "run" / "checkpoints" / "step-00000002" / "checkpoint.json").exists()
    assert not (tmp_path / "run" / "events" / "W1_0.jsonl").exists()
    assert "held-out, iteration 2: " in (tmp_path / "run" / "loss.svg").read_text()
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))
    shown = CliRunner().invoke(
        group, ["show", str(tmp_path / "run"), "--against", str(tmp_path / "run" / "plan.json")], catch_exceptions=False
    )
    assert shown.exit_code == 0
    assert "W1_0 x dead" in shown.output
    # Who was about to join it hears why it has to leave.
    monkeypatch.setattr("recycle.megatron.gpt.arriving.join_run", lambda *_: FENCED)
    with pytest.raises(RunFailed, match=LATE):
        call("join", tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-00000002").rename(tmp_path / "aside")
    with pytest.raises(RunFailed, match=r"left the run before its end .the others go on without it"):
        call("join", tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--keep-in-memory", "3"], "3: give off, copies=N with N from 1, or parity=K.M with K from 2"),
        (["--keep-in-memory", "copies=2"], "copies=2: it takes 2 hosts, and this run has 1"),
        (["--keep-in-memory", "copies=1", V_SHAPED], "copies=1 takes one chunk per server"),
        (["--timeouts", "silence"], "is no duration"),
        (["--timeouts", "sleep=3s"], "'sleep=3s': give silence, hang, start with a duration"),
        (["--move-layers", "on,off"], "'on,off': give on, off, or mean times to failure and repair such as"),
        (["--checkpoint-every", "5,keep=0"], "'5,keep=0': give a number of iterations, with ,keep=N"),
        (["--faults", "mtbf=soon"], "'soon' is no duration"),
        (["--timeouts", "hang=1m,silence=0s"], "'silence=0s': give a time above 0"),
        (["--timeouts", "hang=1m, hang=2m"], "'hang=1m, hang=2m': hang is given twice; leave one of them out"),
        (["--faults", "mtbf=30s,seed=many"], "'mtbf=30s,seed=many': give a whole number as seed"),
    ],
)
def test_a_value_of_several_parts_is_refused_if_one_of_them_is_wrong(tmp_path, options, expected):
    with pytest.raises((UserError, click.BadParameter), match=expected):
        call("train", *SMALL, *options, "-o", tmp_path / "run")


def test_values_of_several_parts_are_read():
    assert Timeouts.parse("hang=1m,silence=9s") == Timeouts(9.0, 60.0, 600.0)
    assert Timeouts.parse("") == Timeouts()
    assert Saves.parse("100") == Saves(100, 2)
    assert Saves.parse("100,keep=3") == Saves(100, 3)
    assert Outlook.parse("on") == OF_A_CLUSTER
    assert Outlook.parse("off") is None
    assert FAULTS.convert("mtbf=30s,seed=1", None, None) == RandomFaults(30.0, 1)
    assert FAULTS.convert("mtbf=30s", None, None) == RandomFaults(30.0, 0)
    assert FAULTS.convert("trace.csv", None, None) == Path("trace.csv")


FIRST_IMPORT = """
import os, sys
from recycle.cli import main

class Watch:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print("torch may log", os.environ.get("TORCH_CPP_LOG_LEVEL"))

sys.meta_path.insert(0, Watch())
try:
    main()
finally:
    print("Megatron was compiled:", "torch._inductor.compile_fx" in sys.modules)
"""


SLOW = """
import sys
from recycle.cli import main
from recycle.control.board import run_folder

run_folder.PATIENCE = 0.0
try:
    main()
finally:
    print("slow:", *sorted({"torch", "recycle.planner.make"} & sys.modules.keys()))
"""


def said_before_anything_slow(folder, *words):
    """What a command says to standard error that is refused before anything slow is imported."""
    command = [sys.executable, "-c", SLOW, *map(str, words)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "slow:\n")
    return ended.stderr


def require_refusal(said, message):
    """It is one line, behind one that says so where something takes long."""
    assert re.search(rf"^recycle: .*{message}.*\n\Z", said, re.MULTILINE), said


def test_a_folder_in_which_a_run_is_alive_is_refused_before_anything_slow(tmp_path):
    with taken(tmp_path / "run"):
        said = said_before_anything_slow(tmp_path, "train", *SMALL, "--resume", "-o", tmp_path / "run")
    assert re.fullmatch(r"recycle: .*/run: a run is alive in it; .* --output\n", said)


@pytest.mark.parametrize(
    ("options", "checkpoint", "message"),
    [
        ([], "step-00000003", "there is a run in it; go on with --resume"),
        (["--resume"], "step-3", "resume: there is no checkpoint in .*; start without --resume"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_before_anything_slow(tmp_path, options, checkpoint, message):
    (tmp_path / "run" / "checkpoints" / checkpoint).mkdir(parents=True)
    require_refusal(said_before_anything_slow(tmp_path, "train", *SMALL, *options, "-o", "run"), message)


@pytest.mark.parametrize("options", [["--resume"], ["--resume-from", "run"]])
def test_a_run_that_has_all_its_iterations_is_refused_before_anything_slow(tmp_path, options):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000020"
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST).write_bytes(msgspec.json.encode(Manifest(2, 20, {})))
    said = said_before_anything_slow(tmp_path, "train", *SMALL, *options, "-o", "run", "--iterations", 20)
    found = r"recycle: iterations is 20, and \S+/step-00000020 has 20 of them already; ask for more\n"
    assert re.fullmatch(found, said)


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("--faults", 'fault = "kill"', "Expected `array`, got `str`.*docs/reference/faults.md"),
        (
            "--faults",
            '[[fault]]\nkind = "kill"\nserver = "W9_9"\niteration = 1',
            "fault 1, .*: server W9_9: this job has",
        ),
        ("--token-file", "short", "a secret has 16 characters at least; make one with"),
        ("--plan", "{}", "this is no recycle plan file"),
        ("--catalogue", "none", "this is no catalogue"),
        ("--model", "layers = = 2", "this is no TOML file"),
        ("--model", "hiden = 64", "unknown key `hiden` \\(did you mean `hidden`\\?\\)"),
        ("--model", 'hidden = "64"', "Expected `int`, got `str` - at `\\$.hidden`; docs/reference/train.md"),
        ("--model", "layers = 3", "layers is 3: 2 stages need a multiple of 2"),
        ("--model", "heads = 3", "heads is 3: it must divide hidden"),
        ("--model", "/nowhere.toml", "cannot be read: No such file"),
        ("--text", "/nowhere.txt", "text: /nowhere.txt cannot be read: No such file"),
        ("--text", "/nowhere.idx", "text: /nowhere.idx is of a dataset of tokens; give a file of text"),
        ("--text", "/dev/zero", "text: /dev/zero is a device or a pipe"),
        (
            "--resume-from",
            "/nowhere",
            "resume-from: there is no whole checkpoint in /nowhere; give the folder of a run",
        ),
        ("--store", "http://host", "store '.*': give etcd://"),
        ("--address", "203.0.113.1", "address .* cannot be used"),
        ("--address", "a" * 64, "address a+ cannot be used: it is no name of a host"),
        ("--store", f"etcd://{'a' * 64}", "store 'etcd://a+': give etcd://"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_slow(tmp_path, option, content, message):
    value = tmp_path / "wrong.toml"
    if option in ("--address", "--store") or content.startswith("/"):
        value = content
    else:
        value.write_text(content)
    require_refusal(said_before_anything_slow(tmp_path, "train", *SMALL, option, value, "-o", "run"), message)


@pytest.mark.parametrize("words", [["nowhere"], ["nowhere", "--address", "nosuch0"]])
def test_a_run_that_is_not_there_is_said_to_a_joiner_before_anything_slow(tmp_path, words):
    refused = r"recycle: (nowhere/plan.json: cannot be read|address nosuch0 cannot be used): .*\n"
    assert re.fullmatch(refused, said_before_anything_slow(tmp_path, "join", *words))


@pytest.mark.long
def test_torch_is_told_to_log_nothing_before_it_is_imported_and_to_compile_nothing_for_a_cpu(tmp_path):
    # It reads that once; and each wait at the store that times out, of which every run has many, would be two lines.
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"}
    words = ["train", "-D", "2", "-P", "2", "-M", "2", "--iterations", "1", "-o", str(tmp_path / "run")]
    ended = subprocess.run(
        [sys.executable, "-c", FIRST_IMPORT, *words],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("torch may log FATAL")
    assert ended.stdout.endswith(f"Megatron was compiled: {torch.backends.cuda.is_built()}\n")


def test_a_run_that_fails_exits_1_and_says_why(run, tmp_path):
    (tmp_path / "model.toml").write_text("learning_rate = 1e30\n")
    (tmp_path / "faults.toml").write_text('[[fault]]\nkind = "kill"\nservers = ["W0_0", "W1_0"]\niteration = 2\n')
    endings = {
        ("--restarts", "0", "--model", tmp_path / "model.toml"): "start a new run with a smaller learning_rate",
        ("--faults", tmp_path / "faults.toml"): "no live server",
    }
    for number, (arguments, message) in enumerate(endings.items()):
        folder = tmp_path / f"run-{number}"
        status, _, err = run("train", *SMALL, "--iterations", 9, *arguments, "-o", folder)
        assert status == 1
        assert err.splitlines()[-1].startswith("recycle: ")
        assert message in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SMALL, "--plan", SCHEDULES / "4-staggered.json"], r"the plan is for 3 x 4 x 6 .* the job is 2 x 2 x 2"),
        (
            [V_SHAPED, "-D", 3, "-P", 4, "-M", 6, "--plan", SCHEDULES / "4-staggered.json"],
            "the plan is for placement standard, and the job's is v-shaped: make a plan for this job",
        ),
        (
            [SCHEDULES / "paper.toml", "--plan", SCHEDULES / "4-staggered.json", "--dead", "W0_1"],
            "the plan is for W1_2 dead, and --dead says W0_1",
        ),
        ([*SMALL, "--dead", "W0_0,W1_0"], "stage 0 has no live server"),
        ([*SMALL, "--model", SCHEDULES / "paper.toml"], r"this is a job file, and a model file is needed: docs/refer"),
        ([*SMALL, "--store", "etcd://127.0.0.1:1"], "etcd at 127.0.0.1:1 does not answer.*see whether it runs there"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr("recycle.control.host.claim.EtcdStore", partial(EtcdStore, patience=0.5))
    if "--model" not in arguments:
        (tmp_path / "model.toml").write_text("layers = 8")
        arguments = ["--model", tmp_path / "model.toml", *arguments]
    with pytest.raises(UserError, match=message) as caught:
        call("train", *arguments, "-o", tmp_path)
    assert "\n" not in str(caught.value)
