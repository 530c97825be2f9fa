"""What surrounds a command is none of its business: streams, the width of a terminal, variables of other programs."""

import errno
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import paper_plan
from recycle.cli.surroundings import settled
from recycle.files import read_bytes, without_mark, write_whole
from recycle.plan.document import save_plan

JOB = 'pipelines = 2\nstages = 2\nmicro_batches = 2\nname = "Müller 测试 😀 \\u001b[31m"\ntime_unit = "µs"\n'
COMMANDS = {
    "plan": ("plan", "job.toml", "--moves", "1"),
    "check": ("check", "plan.json"),
    "explain": ("explain", "plan.json"),
    "equal": ("check", "plan.json", "--against", "plan.json"),
    "show": ("show", "plan.json"),
    "study": ("study", "job.toml", "--seeds", "1", "--policy", "dropping"),
    "catalogue": ("catalogue", "job.toml", "--failures", "1", "--moves", "1", "-o", "plans.zip"),
    "json": ("plan", "job.toml", "--moves", "1", "--json"),
    "csv": ("show", "plan.json", "--csv", "-"),
    "output": ("plan", "job.toml", "--moves", "1", "-o", "-"),
    "picture": ("show", "plan.json", "--svg", "-"),
    "doctor": ("doctor", "--ranks", "2", "pretrain_gpt.py", "--micro-batch-size", "1"),
    "help": ("--help",),
    "help of a verb": ("plan", "--help"),
}
"""Commands that print, of every kind."""


COUNTS = "hours,live\n0,4\n1,3\n2,4\n"


@pytest.fixture
def call(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    save_plan(paper_plan(), tmp_path / "plan.json")

    def run(name, redirected="", **variables):
        words = f"{sys.executable} -c 'from recycle.cli import main; main()' {' '.join(COMMANDS[name])} {redirected}"
        environment = os.environ | {"PYTHONUNBUFFERED": ""} | variables
        return subprocess.run(["bash", "-c", words], cwd=tmp_path, env=environment, capture_output=True, check=False)

    return run


def test_a_width_that_is_none_is_that_of_a_page(call):
    usual, given = (call("show", COLUMNS=columns).stdout for columns in ("80", "9" * 5000))
    assert given == usual
    assert usual.strip()


@pytest.mark.parametrize("columns", ["0", "-3", "", "²", "9" * 30, "9" * 5000, "wide"])
def test_no_width_is_left_to_libraries_that_is_none(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    with settled():
        assert "COLUMNS" not in os.environ


NARROW = {"COLUMNS": "1", "PYTHONIOENCODING": "ascii"}


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        *((name, NARROW) for name in sorted(COMMANDS)),
        ("show", {"COLUMNS": "0", "PYTHONIOENCODING": "latin-1"}),
        ("show", {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}),
    ],
)
def test_what_every_command_prints_fits_any_width_and_encoding(call, name, variables):
    done = call(name, **variables)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert done.stdout.strip()
    assert b"\x1b" not in done.stdout


def test_a_dash_is_standard_input_and_standard_output(call, tmp_path):
    plan = call("output", "2>/dev/null").stdout
    done = call("output", f"2>/dev/null | {sys.executable} -c 'from recycle.cli import main; main()' check -")
    assert (done.returncode, b"LEGAL" in done.stdout) == (0, True)
    assert msgspec.json.decode(plan)["job"]["name"].startswith("M")
    assert call("picture").stdout.startswith(b"<svg")
    (tmp_path / "trace.csv").write_text(COUNTS)
    assert call("study", "--trace - < trace.csv").returncode == 0
    assert call("catalogue", "-o -").returncode == 2


@pytest.mark.parametrize("words", [("plan", "-", "--moves", 1), ("show", "-", "--csv", "a.csv", "--svg", "a.svg")])
def test_a_verb_may_look_at_standard_input_twice(run, plan_file, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    content = plan_file.read_bytes() if words[0] == "show" else JOB.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert run(*words)[0] == 0


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("check - --against -", "PLAN and --against"),
        ("show plan.json --against - --against -", "--against and --against"),
        ("study - --trace -", "JOB and --trace"),
        ("plan - --catalogue -", "JOB and --catalogue"),
        ("train - --plan - -o run", "JOB and --plan"),
    ],
)
def test_two_files_cannot_both_be_standard_input(refused, words, names):
    err = refused(*words.split())
    assert f"recycle: {names}: standard input can be read once; give a file in the place of one -" in err


@pytest.mark.parametrize("name", ["csv", "output", "picture"])
def test_what_should_go_where_nothing_is_open_is_not_said_to_be_written(call, name):
    done = call(name, ">&-")
    assert (done.returncode, b"written to" in done.stderr) == (2, False)
    assert done.stderr.decode().endswith("recycle: standard output: it is closed; give a file in the place of -\n")


def test_a_closed_standard_input_is_one_line(call):
    done = call("study", "--trace - <&-")
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert done.stderr.decode().endswith("recycle: standard input: it is closed; give a file in the place of -\n")


WRITES = {"show", "json", "csv", "output", "picture", "help"}
"""A command of each way in which standard output is written."""


@pytest.mark.parametrize(
    ("name", "unbuffered"),
    [
        *((name, "") for name in sorted(WRITES)),
        *(pytest.param(name, "", marks=pytest.mark.long) for name in sorted(COMMANDS.keys() - WRITES)),
        ("check", "1"),
        ("json", "1"),
    ],
)
def test_a_full_disk_is_one_line_and_a_closed_pipe_is_none(call, name, unbuffered):
    done = call(name, "> /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    last = f"recycle: standard output: cannot be written: {os.strerror(errno.ENOSPC)}\n"
    assert done.stderr.decode().endswith(last)
    assert b"Traceback" not in done.stderr
    done = call(name, "| true; exit ${PIPESTATUS[0]}", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode in (0, 141)
    assert not any(word in done.stderr for word in (b"Traceback", b"recycle:", b"Exception"))


def in_a_terminal(folder, *words):
    """What a command prints into a terminal, without its colours."""
    started = "[sys.executable, '-c', 'from recycle.cli import main; main()', *sys.argv[1:]]"
    code = f"import pty, sys; sys.exit(pty.spawn({started}) >> 8)"
    environment = os.environ | {"NO_COLOR": "1", "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=environment, capture_output=True, check=False
    )
    return done.stdout.decode()


def test_a_terminal_and_a_pipe_are_given_the_same_differences(call, tmp_path, run):
    save_plan(paper_plan(micro_batches=7), tmp_path / "other.json")
    both = ("check", "plan.json", "--against", "other.json")
    shown = in_a_terminal(tmp_path, *both)
    piped = run("check", tmp_path / "plan.json", "--against", tmp_path / "other.json")[1]
    assert "job.micro_batches: 6 -> 7" in piped
    assert " slots -> " in piped
    assert [each for each in piped.split() if each not in shown] == []
    assert "\x1b[3" not in shown
    assert "\x1b" not in piped


def test_an_exit_status_keeps_its_meaning_whatever_becomes_of_the_streams(call, tmp_path):
    broken = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps(broken | {"period": 1}))
    assert call("check").returncode == 1
    assert call("check", ">&-").returncode == 1
    (tmp_path / "plan.json").unlink()
    for redirected in ("", ">&-", "2>&-", "2> /dev/full", "> /dev/full", "> /dev/full 2>&1"):
        assert call("check", redirected).returncode == 2


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff\0"), min_size=1))
def test_a_text_is_the_same_with_any_byte_order_mark(text):
    plain = text.encode()
    for encoding in ("utf-8-sig", "utf-16", "utf-32", "utf-8"):
        assert without_mark(text.encode(encoding)) == plain
    assert without_mark(b"\xfe\xff" + text.encode("utf-16-be")) == plain
    assert without_mark(b"\0\0\xfe\xff" + text.encode("utf-32-be")) == plain


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_every_file_of_a_user_is_read_with_a_byte_order_mark(tmp_path, run, encoding):
    def write(name, text):
        (tmp_path / name).write_bytes(text.encode(encoding))
        return tmp_path / name

    job = write("job.toml", "pipelines = 2\nstages = 2\nmicro_batches = 2\n")
    plan = tmp_path / "plan.json"
    assert run("plan", job, "--moves", 1, "-o", plan)[0] == 0
    assert run("check", write("marked.json", plan.read_text()))[0] == 0
    event = '{{"node_id": "{}", "event_time": {}, "event_type": "fault_{}"}}'
    events = ",".join(event.format(*each) for each in (("a", 1, "start"), ("a", 2, "end"), ("b", 9, "start")))
    faults = (
        '[[fault]]\nkind = "kill"\nserver = "W1_1"\nat = "5s"\n[[fault]]\nkind = "join"\nserver = "W1_1"\nat = "9s"\n'
    )
    for name, text in (("e.json", f"[{events}]"), ("c.csv", "hours,live\n0,4\n1,3\n2,4\n"), ("f.toml", faults)):
        assert run("study", job, "--seeds", 1, "--policy", "dropping", "--trace", write(name, text))[0] == 0


def test_a_file_is_written_through_links_and_keeps_its_mode(tmp_path):
    real, link, second = tmp_path / "real" / "plan.json", tmp_path / "link.json", tmp_path / "second.json"
    real.parent.mkdir()
    link.symlink_to("real/plan.json")
    second.symlink_to("link.json")
    write_whole(second, b"one")
    assert real.read_bytes() == b"one"
    real.chmod(0o600)
    for path in (real, link, second):
        write_whole(path, path.name.encode())
        assert (real.read_bytes(), stat.S_IMODE(real.stat().st_mode)) == (path.name.encode(), 0o600)
    assert link.is_symlink()
    assert second.is_symlink()
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["link.json", "plan.json", "real", "second.json"]


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "out.json"
    os.mkfifo(pipe)
    link.symlink_to("pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(link, b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_binary_files_are_left_as_they_are(tmp_path):
    path = Path(tmp_path / "plans.zip")
    for content in (b"PK\x03\x04\xff\xfe", b"\xff\xfe\x00", b"\xff\xfe\x00\xd8"):
        path.write_bytes(content)
        assert read_bytes(path) == content
