"""Ctrl-C ends every verb, in its first moments too, and leaves nothing half-written."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from harness.forked import TRAINER
from harness.recordings import write_events
from harness.started import TRAIN, Started, wait_until
from recycle.cli.verbs import VERBS
from recycle.plan.document import save_plan
from recycle.record.recording import FORMAT, VERSION, ProcessLine, RunLine, SpanLine
from tests.view.samples import small

# Where the tests run in the background of a shell, they are told to ignore it.
COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from recycle.__main__ import main
print("begins", file=sys.stderr, flush=True)
main()
"""
JOB = ("-D", "6", "-P", "8", "-M", "24")
COMMANDS = {
    "plan": ("plan", *JOB, "--dead", "W0_1,W2_3", "--budget", "10m", "-o", "plan.json"),
    "prove": (*("plan", "-D", "4", "-P", "6", "-M", "12", "--dead", "W1_2,W0_1"), "--moves", "1", "--prove", "10m"),
    "catalogue": ("catalogue", *JOB, "--failures", "3", "--budget", "10m", "-o", "plans.zip"),
    "study": ("study", *JOB, "--seeds", "64"),
    "doctor": (
        *("doctor", "--ranks", "4096", "pretrain_gpt.py", "--micro-batch-size", "1", "--global-batch-size", "8192"),
        *("--pipeline-model-parallel-size", "32"),
    ),
    "check": ("check", "{large}/plan.json"),
    "explain": ("explain", "{large}/plan.json"),
    "show": ("show", "{large}/plan.json", "--svg", "plan.svg"),
    "watch": ("watch", "{large}/plan.json", "--port", "0"),
    "kill": ("kill", "{large}", "W0_0"),
    "train": ("train", "-D", "2", "-P", "1", "-M", "2", "--iterations", "1000000", "-o", "run"),
    "join": ("join", "{run}"),
}
"""What would go on for longer than a test waits, on most machines; at least one command of each verb."""

REST = sorted(COMMANDS.keys() - {"plan"})

KEPT = {"plan": {"plan.json"}, "catalogue": {"plans.zip.part"}, "train": {"run"}}
"""What a command may leave: the best plan, the plans that are there, and a run that goes on from its checkpoint."""

ENDED = {130, -signal.SIGINT}
"""Exit statuses: while a verb is still imported, the signal itself ends it."""


@pytest.fixture(scope="module")
def large(shared_runs):
    """A plan and a recording that take seconds to read."""

    def make(folder):
        save_plan(small(16, 8, 256), folder / "plan.json")
        lines = [
            RunLine(FORMAT, VERSION, "run", "us", "measured"),
            ProcessLine("W0_0", os.getpid(), socket.gethostname()),
        ]
        lines += itertools.repeat(SpanLine("W0_0", "compute", "0F0.0", 0.0, 1.0, 0), 100_000)
        write_events(folder, {"W0_0": lines})

    return shared_runs.run("a plan and a recording that take seconds to read", make, type(None)).folder


@pytest.fixture(scope="module")
def going_on(tmp_path_factory):
    """The folder of a run that lacks a server, and goes on."""
    folder = tmp_path_factory.mktemp("run") / "run"
    words = ("train", "-D", "2", "-P", "1", "-M", "2", "--dead", "W1_0", "--iterations", "1000000", "-o", str(folder))
    train = Started([*TRAIN, *words], imported=TRAINER)
    try:
        train.wait_for("iteration 2/")
        yield folder
    finally:
        train.kill()


def words_of(command, request):
    words = list(COMMANDS[command])
    for place, name in (("{large}", "large"), ("{run}", "going_on")):
        if any(place in each for each in words):
            folder = str(request.getfixturevalue(name))
            words = [each.replace(place, folder) for each in words]
    return words


def is_group(number):
    """Whether any of its processes is left."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def interrupted(folder, words, moment, times=1):
    command = [sys.executable, "-c", COMMAND, *words]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        # Before that it is Python itself that is interrupted.
        assert process.stderr.readline() == b"begins\n"
        time.sleep(moment)
        for _ in range(times):
            # As a terminal does: everything that was started from it is sent it too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.2)
        # Each would go on for minutes; how long the end takes depends on who else uses the machine.
        said, errors = process.communicate(timeout=120)
        wait_until(lambda: not is_group(process.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert b"Traceback" not in errors, errors.decode()
    return process.returncode, said.decode() + errors.decode()


def test_every_verb_is_interrupted_here():
    assert {words[0] for words in COMMANDS.values()} == set(VERBS)


@pytest.mark.parametrize("moment", [1.0, *(pytest.param(each, marks=pytest.mark.long) for each in (0.2, 3.0, 10.0))])
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_one_interrupt_ends_a_verb_and_all_its_processes(tmp_path, request, command, moment):
    status, said = interrupted(tmp_path, words_of(command, request), moment)
    left = {each.name for each in tmp_path.iterdir()}
    if status in ENDED:
        assert left <= KEPT.get(command, set()) - {"plan.json"}
    elif command in ("plan", "prove", "watch"):
        # The best plan is kept, and a page is ended by nothing else.
        assert (status, left) == (0, KEPT.get(command, set())), said
    else:
        # It was done before: some read their files in less than these seconds, and a joiner that was interrupted may
        # not be declared dead yet.
        assert status in ({2} if command in ("kill", "join") else {0}), said
        assert command in ("check", "explain", "show", "kill") or "cannot join" in said, said


@pytest.mark.parametrize("command", ["plan", *(pytest.param(each, marks=pytest.mark.long) for each in REST)])
def test_a_second_interrupt_ends_what_the_first_one_left_to_do(tmp_path, request, command):
    status, _ = interrupted(tmp_path, words_of(command, request), 3.0, times=2)
    assert status in {0, 2} | ENDED
    assert {each.name for each in tmp_path.iterdir()} <= KEPT.get(command, set())


EARLY = """
import itertools, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
count = itertools.count()

def interrupt(event, _):
    if event == "import" and next(count) == {number}:
        signal.raise_signal(signal.SIGINT)

sys.addaudithook(interrupt)
from recycle.__main__ import main
main()
"""
FIRST = 4
"""Imports until an interrupt is taken: of the package, its version, its first module, and signals."""


@pytest.mark.parametrize("number", [*range(FIRST, FIRST + 8), *range(FIRST + 8, 80, 12)])
def test_an_interrupt_while_the_command_is_imported_is_taken_without_a_word(number):
    words = [sys.executable, "-c", EARLY.format(number=number), "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_the_package_is_a_command_too():
    words = [sys.executable, "-m", "recycle", "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.startswith("recycle, version ")


AFTER = """
import atexit, signal, sys
from recycle.cli import main, verbs
from recycle.errors import UserError
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupted(UserError):
    def __str__(self):
        signal.raise_signal(signal.SIGINT)

def act(prog_name, standalone_mode):
    print("begins", flush=True)
    {act}

verbs.group = act
main()
"""


def test_an_interrupt_ends_the_first_process_of_a_container_too():
    # No signal ends that one by itself.
    program = AFTER.format(act="signal.raise_signal = id; atexit.register(os.kill, os.getpid(), signal.SIGINT)")
    words = [sys.executable, "-c", f"import os\n{program}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "begins\n", "")


@pytest.mark.parametrize("act", ["raise Interrupted", "atexit.register(signal.raise_signal, signal.SIGINT)"])
def test_an_interrupt_after_a_verb_ends_the_process_without_a_word(act):
    done = subprocess.run([sys.executable, "-c", AFTER.format(act=act)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "begins\n", "")


UNHEARD = """
import os, signal, sys, time
from recycle.cli import main, verbs
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupted():
    signal.raise_signal(signal.{name})

class Garbage:
    def __del__(self):
        interrupted()

def act(prog_name, standalone_mode):
    if {signals}:
        from recycle.runtime.launch.process.signals import EndSignals
        EndSignals(lambda: False).__enter__()
    print("begins", flush=True)
    {act}
    print("goes on", flush=True)

verbs.group = act
main()
"""
ACTS = {"garbage": "Garbage()", "fork": "os.register_at_fork(before=interrupted); os.fork() or os._exit(0)"}


@pytest.mark.parametrize("act", sorted(ACTS))
@pytest.mark.parametrize(("name", "signals"), [("SIGINT", False), ("SIGINT", True), ("SIGTERM", True)])
def test_an_interrupt_is_heard_where_python_only_prints_what_is_raised(act, name, signals):
    program = UNHEARD.format(act=ACTS[act], name=name, signals=signals)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-getattr(signal, name), "begins\n"), done.stderr
    assert not done.stderr


LOADING = """
import ctypes, signal, sys
from recycle.cli.surroundings import interrupted_at_once
signal.signal(signal.SIGINT, {handler})
with interrupted_at_once():
    print("begins", flush=True)
    # Python's lock is held, as it is while a library is loaded, until the other end of the pipe is closed.
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
assert signal.getsignal(signal.SIGINT) == {handler}
print("goes on", flush=True)
"""


@pytest.mark.parametrize(
    ("handler", "status", "said"), [("signal.default_int_handler", -2, ""), ("signal.SIG_IGN", 0, "goes on\n")]
)
def test_an_interrupt_ends_what_loads_a_library_unless_it_is_ignored(handler, status, said):
    program = [sys.executable, "-c", LOADING.format(handler=handler)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(program, text=True, **pipes) as process:
        assert process.stdout.readline() == "begins\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
    assert (process.returncode, out, errors) == (status, said, "")
