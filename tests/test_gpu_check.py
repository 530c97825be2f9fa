"""What scripts/gpu-check does where there is no GPU: what can be done, and to say what is left out."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.flag_runs import needs_training
from harness.forked import TRAINING_CODE, Forked
from harness.paths import python_path
from harness.processes import children, is_running, title
from harness.started import wait_until
from recycle.runtime.net.nccl import bindings
from scripts import gpu_check, gpu_executor, gpu_flag

ROOT = Path(__file__).parents[1]
NONE = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
ARGUMENTS = argparse.Namespace(kills=1, small=False, script=None)


@NONE
def test_each_part_is_a_row_of_a_table():
    command = [ROOT / "scripts" / "gpu-check", "find", "nccl"]
    environment = os.environ | {"PYTHON": sys.executable}
    ended = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    head, _, found, nccl = ended.stdout.splitlines()
    assert head == "| part | result | what was found | seconds |"
    assert found.startswith("| `find` | passed | Python 3.")
    assert nccl.startswith("| `nccl` | left out | no GPU here; ")


@pytest.mark.long
@NONE
@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("stages", "on cpu: at most "),
        ("own", "2 ranks of a server on cpu over staged: "),
        ("exact", "2 x 2 servers on cpu, 16 iterations: 2 failures, "),
        ("executor", "4 layers of 64 x 64 on cpu, 8 micro-batches: plain Megatron "),
        ("passes", "local passes of 8 ranks and 1 MiB on cpu: gather by sums "),
        ("events", "an event on cpu: record "),
        ("launches", "behind a stream that is busy for 50 ms on cpu, 1 connections: launched after "),
        ("copies", "10 copies of 1 MiB on cpu: "),
        ("gaps", "an iteration on cpu by the profiler: "),
        ("profile", "F, I, W, held, after I of two stages: "),
        ("staged", "8 servers on cpu, "),
        ("kills", "4 ranks on cpu over staged, 3 kills: 0 hangs, 0 wrong sums; "),
    ],
)
def test_a_part_that_goes_on_a_cpu_is_run(part, found):
    """In a process that is forked, because most of its time is that of imports."""
    words = ["-m", "scripts.gpu_check", "--inside", part]
    with Forked(words, os.environ | {"PYTHONPATH": python_path()}, ROOT) as check:
        said = check.stdout.read()
    status, detail = json.loads(said.splitlines()[-1])
    assert status == "passed", said
    assert detail.startswith(found)


@pytest.mark.long
@NONE
@needs_training
@pytest.mark.timeout(600)
def test_on_a_cpu_megatrons_training_code_is_run_under_the_flag_and_beside_it(monkeypatch):
    """In this process, and with ranks that are forked, because most of their time is that of imports."""

    def fork(words, *, env, cwd, stdout, **_):
        assert words[:4] == [sys.executable, "-W", "ignore", "-m"]
        return Forked(words[3:], env, cwd, TRAINING_CODE, output=stdout)

    monkeypatch.setattr(gpu_flag, "subprocess", SimpleNamespace(Popen=fork, run=subprocess.run))
    (flag_status, flag), (stock_status, stock) = (gpu_check.run_inside(each, ARGUMENTS) for each in ("flag", "stock"))
    assert (flag_status, stock_status) == ("passed", "passed"), (flag, stock)
    assert flag.startswith(
        "pretrain_small_gpt.py, 4 ranks on cpu, one killed, against one pipeline on the cpu: over gloo "
    )
    assert re.search(r", a fused plan \d\.\d+ of it, a split one \d\.\d+; losses differ by at most ", stock)
    # Nobody waits for what the first stage's backward pass gives, so that only the last one's is split.
    assert re.search(r"in the runs B0 .* B1 .*, and .* I1 .* W1 ", stock)


def test_a_process_that_forks_others_does_not_ask_for_gpus_itself(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append("whether") or True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: asked.append("how many") or 2)
    monkeypatch.setattr(gpu_check, "gpus", gpu_check.gpus.__wrapped__)
    assert (gpu_check.device(), gpu_check.gpus(), asked) == ("cuda", 2, [])


def test_ranks_share_a_gpu_where_nccl_lets_them(monkeypatch):
    monkeypatch.setattr(gpu_check, "gpus", lambda: 1)
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    monkeypatch.setattr(bindings, "Nccl", lambda: SimpleNamespace(release=22907))
    assert "release 22907: several ranks on one take 2.30.3" in gpu_check.share_gpus(4)
    monkeypatch.setattr(bindings, "Nccl", lambda: SimpleNamespace(release=23003))
    assert gpu_check.share_gpus(4) is None
    assert os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"


def test_a_part_that_takes_too_long_is_ended_and_has_failed(monkeypatch):
    late = gpu_check.PARTS["stages"]._replace(limit=0.01)
    monkeypatch.setitem(gpu_check.PARTS, "stages", late)
    outcome = gpu_check.run_part("stages", ARGUMENTS)
    assert (outcome.status, outcome.detail) == ("failed", "it took more than 0.01 s")


@NONE
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_ends_the_check_ends_its_part(number):
    environment = os.environ | {"PYTHON": sys.executable}
    words = [ROOT / "scripts" / "gpu-check", "kills"]
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE) as check:
        try:
            # It has begun to import what it needs. The check has had other children, which have ended.
            wait_until(lambda: parts_of(check))
            (part,) = parts_of(check)
            check.send_signal(number)
            check.communicate()
        finally:
            check.kill()
    assert check.returncode in (128 + number, -number)
    wait_until(lambda: not is_running(part))


def parts_of(check):
    return [each for each in children(check.pid) if "--inside" in title(each)]


def test_what_a_part_raises_is_its_failure(monkeypatch):
    def fail(_):
        raise ValueError("this is wrong\nin detail")

    monkeypatch.setitem(gpu_check.PARTS, "stages", gpu_check.Part(fail, "", 1))
    assert gpu_check.run_inside("stages", ARGUMENTS) == ("failed", "ValueError: this is wrong")


def test_a_part_that_failed_fails_the_check(monkeypatch, capsys):
    outcomes = {"find": "passed", "stages": "failed"}
    monkeypatch.setattr(gpu_check, "run_part", lambda name, *_: gpu_check.Outcome(name, outcomes[name], "a | b", 0.0))
    for parts, status in ((["find"], 0), (["find", "stages"], 1)):
        monkeypatch.setattr("sys.argv", ["gpu-check", *parts])
        assert gpu_check.main() == status
    assert "| `stages` | failed | a / b | 0 |" in capsys.readouterr().out


def test_a_row_is_kept_as_soon_as_its_part_is_over(monkeypatch, tmp_path):
    known = []

    def run_part(name, *_):
        rows = tmp_path / "found" / "rows.jsonl"
        known.append([json.loads(line)["part"] for line in rows.read_text().splitlines()] if rows.exists() else [])
        return gpu_check.Outcome(name, "passed", "all is well", 1.0)

    monkeypatch.setattr(gpu_check, "run_part", run_part)
    monkeypatch.setattr("sys.argv", ["gpu-check", "find", "stages", "-o", str(tmp_path / "found")])
    assert gpu_check.main() == 0
    assert known == [[], ["find"]]
    assert (tmp_path / "found" / "table.md").read_text().splitlines()[3] == "| `stages` | passed | all is well | 1 |"


def test_parts_for_which_there_is_no_time_are_left_out(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu-check", "find", "stages", "--minutes", "0"])
    assert gpu_check.main() == 0
    assert capsys.readouterr().out.count("| left out | there was no time left for it | 0 |") == 2


def test_wheels_are_installed_without_a_network_and_removed(monkeypatch, tmp_path, capsys):
    name = "carried-1.0.dist-info"
    with zipfile.ZipFile(tmp_path / "carried-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "")
        wheel.writestr(
            f"{name}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{name}/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
        wheel.writestr(f"{name}/RECORD", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    seen = []

    def run_part(name, *_):
        own, site = os.environ["PYTHONPATH"].split(os.pathsep)
        assert (own, Path(site, "carried.py").exists()) == (str(ROOT), True)
        seen.append(Path(site))
        return gpu_check.Outcome(name, "passed", "", 0.0)

    monkeypatch.setattr(gpu_check, "run_part", run_part)
    monkeypatch.setattr("sys.argv", ["gpu-check", "find", "--wheels", str(tmp_path)])
    assert gpu_check.main() == 0
    assert not seen[0].exists()


@pytest.mark.parametrize(
    ("busy", "found"),
    [
        ([], (0, 0)),
        ([(5, 5)], (0, 0)),
        ([(0, 4), (1, 2), (3, 6)], (0, 0)),
        ([(8, 10), (0, 2), (1, 3), (4, 5)], (3, 0.4)),
    ],
)
def test_the_gaps_between_what_a_device_does(busy, found):
    assert gpu_executor.idle_between(busy) == found
