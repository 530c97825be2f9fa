"""Ctrl-C ends every verb, in its first moments too, and leaves nothing half-written."""

import os
import signal
import subprocess
import sys
import time

import pytest

JOB = ("-D", "6", "-P", "8", "-M", "24")
# Where the tests run in the background of a shell, they are told to ignore it.
COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from recycle.cli import main
print("begins", file=sys.stderr, flush=True)
main()
"""
VERBS = {
    "plan": ("plan", *JOB, "--dead", "W0_1,W2_3", "--budget", "10m", "-o", "plan.json"),
    "catalogue": ("catalogue", *JOB, "--failures", "3", "--budget", "10m", "-o", "plans.zip"),
    "study": ("study", *JOB, "--seeds", "64"),
    "sweep": ("study", *JOB, "--sweep", "servers=100,400,1000,4000 micro-batches=64,256"),
    "doctor": (
        *("doctor", "--ranks", "4096", "pretrain_gpt.py", "--micro-batch-size", "1", "--global-batch-size", "8192"),
        *("--pipeline-model-parallel-size", "32"),
    ),
}
"""Verbs that would go on for longer than a test waits."""


def interrupted(folder, words, moment, times=1):
    command = [sys.executable, "-c", COMMAND, *words]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    # Before that it is Python itself that is interrupted.
    assert process.stderr.readline() == b"begins\n"
    time.sleep(moment)
    assert process.poll() is None
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    # A search would go on for minutes; how long the end takes depends on who else uses the machine.
    _, said = process.communicate(timeout=60)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    return process.returncode, said.decode()


@pytest.mark.parametrize("moment", [0.5, 3.0])
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_one_interrupt_ends_a_verb_and_all_its_processes(tmp_path, verb, moment):
    status, said = interrupted(tmp_path, VERBS[verb], moment)
    assert "Traceback" not in said
    if verb == "plan" and status == 0:
        assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]
        return
    # While it is still imported, the signal itself ends it.
    assert status in (130, -signal.SIGINT)
    assert [each.name for each in tmp_path.iterdir()] in ([], ["plans.zip.part"])


def test_a_second_interrupt_ends_a_search_whose_plan_would_be_kept(tmp_path):
    status, said = interrupted(tmp_path, VERBS["plan"], 3.0, times=2)
    # On a busy machine the verb may still be imported, and the signal itself ends it.
    assert status in (0, 130, -signal.SIGINT)
    assert "Traceback" not in said
