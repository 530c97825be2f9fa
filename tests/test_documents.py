"""Every command of the documents: verbs and options exist, and what takes seconds is run, long ones at a small size."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from harness.started import ROOT, Started
from recycle.cli import VERBS, group
from recycle.megatron.flag.flags import find_flags

DOCUMENTS = [
    *(ROOT / "docs").glob("*.md"),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
]

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")

# What makes a verb's commands small enough to be run; those of other verbs are looked at only.
SMALLER = {
    "plan": ["--moves", "1", "--prove", "0s"],
    "check": [],
    "show": [],
    "explain": [],
    "diff": [],
    "export": [],
    "lower": [],
    "catalogue": ["-D", "3", "-P", "4", "-M", "2", "--failures", "2", "--moves", "1"],
    "lookup": [],
    "losses": [],
    "doctor": shlex.split(
        "--num-layers 8 --micro-batch-size 1 --global-batch-size 8 --pipeline-model-parallel-size 4 "
        "--distributed-backend gloo --transformer-impl local"
    ),
    "study": ["-D", "2", "-P", "2", "-M", "2", "--seeds", "1"],
    "watch": ["--port", "0"],
    "train": ["-D", "2", "-P", "3", "-M", "2", "--model", "tiny.toml", "--iterations", "2", "-o", "trained"],
    "profile": ["-D", "2", "-P", "2", "-M", "2", "--model", "tiny.toml", "--repeats", "1", "-o", "profiled.toml"],
}
SWEEP = ["--sweep", "servers=104 micro-batches=6"]
PLACEHOLDERS = {"PLAN", "...", "<its", "/shared/run", "--reproduce"}
REST = {"...", "<its", "arguments>"}
"""What stands for the rest of a Megatron job's command line."""

TINY = "layers = 6\nhidden = 16\nheads = 2\nsequence = 8\nvocabulary = 256\n"


class Command(NamedTuple):
    """A command of a document: the words of ``recycle`` or ``python``, and those before them."""

    document: str
    text: str
    words: tuple[str, ...]


def commands_of(path: Path) -> list[Command]:
    text = path.read_text()
    lines = []
    for block in FENCE.finditer(text):
        if block["language"] in ("", "sh"):
            lines += block["body"].replace("\\\n", " ").splitlines()
    lines += [" ".join(each.split()) for each in SPAN.findall(FENCE.sub("", text))]
    found = []
    for line in lines:
        # What stands two spaces to the right says what the command does.
        match = re.match(r"(?:\w+=\S+ |(?:torchrun|srun)\b.*? )*(?:\$\(which )?(recycle\)? \S.*|python \S.*)", line)
        if match is None:
            continue
        words = shlex.split(re.split(r"\s{2,}|\s#", match[1].replace("recycle)", "recycle"))[0])
        program = "." if len(words) < 2 else words[1]
        if (words[0] == "recycle" and program in VERBS and len(words) > 2) or words[0] == "python":
            found.append(Command(path.name, line.strip(), tuple(words)))
    return found


COMMANDS = [command for path in sorted(DOCUMENTS) for command in commands_of(path)]
VERB_COMMANDS = [command for command in COMMANDS if command.words[0] == "recycle"]
TO_RUN = sorted(
    {
        tuple(word for word in each.words if each.words[1] != "doctor" or word not in REST)
        for each in VERB_COMMANDS
        if each.words[1] in SMALLER and (each.words[1] == "doctor" or not PLACEHOLDERS & set(each.words))
    }
)
BENCHMARKS = sorted({word for each in COMMANDS for word in each.words if word.startswith("benchmarks.")})


FLAG_LINES = sorted(
    {
        line.strip()
        for path in DOCUMENTS
        for line in path.read_text().replace("\\\n", " ").splitlines()
        if line.startswith("torchrun") and "-m recycle.megatron" in line
    }
)
FILES = sorted(
    {
        found.rstrip(".")
        for path in DOCUMENTS
        for found in re.findall(r"(?<![\w/.])(?:scripts|tests|examples)/[\w./-]*\w", path.read_text())
    }
)


def name_of(command):
    return f"{command.document}: {command.text[:60]}"


def test_the_documents_have_commands_of_every_verb():
    assert {command.words[1] for command in VERB_COMMANDS} == set(VERBS)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """What the documents' commands read, by the names that they give it."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "schedules").symlink_to(ROOT / "schedules")
    readme = (ROOT / "README.md").read_text()
    job = next(block["body"] for block in FENCE.finditer(readme) if block["language"] == "toml")
    (folder / "job.toml").write_text(job)
    (folder / "tiny.toml").write_text(TINY)
    (folder / "model.toml").write_text(TINY)
    small = ["schedules/paper.toml", "-D", "2", "-P", "2", "-M", "2"]
    for words in (
        ["plan", *small, "--moves", "1", "-o", "plan.json"],
        ["plan", *small, "--moves", "1", "--form", "compute", "-o", "compute.json"],
        ["catalogue", "schedules/paper.toml", *SMALLER["catalogue"], "-o", "catalogue.zip"],
        ["train", *small, "--model", "tiny.toml", "--iterations", "4", "-o", "run"],
    ):
        started(folder, ["recycle", *words])
    for name in ("a.json", "b.json", "other.json", "third.json"):
        shutil.copy(folder / "plan.json", folder / name)
    shutil.copytree(folder / "run", folder / "undisturbed")
    for name in ("trace.csv", "mine.csv"):
        shutil.copy(ROOT / "recycle" / "faults" / "data" / "shared-gpus.csv", folder / name)
    return folder


def started(folder, words):
    """Run a command in a folder; what it printed."""
    program = ["-c", "from recycle.cli import main; main()"] if words[0] == "recycle" else ["-m", words[0]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run(
        [sys.executable, *program, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, f"{shlex.join(words)}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.mark.parametrize("command", VERB_COMMANDS, ids=name_of)
def test_verbs_and_options_exist(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verb = group.get_command(click.Context(group), command.words[1])
    # It prints its tables as soon as it is read.
    verb.make_context(command.words[1], [word for word in command.words[2:] if word != "--reproduce"])


@pytest.mark.parametrize("words", TO_RUN, ids=" ".join)
def test_what_takes_seconds_is_run(words, inputs, tmp_path, monkeypatch, run):
    shutil.copytree(inputs, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    smaller = [*words, *SMALLER[words[1]], *(SWEEP if "--sweep" in words else ())]
    if words[1] == "watch":
        watch = Started([sys.executable, "-c", "from recycle.cli import main; main()", *smaller[1:]])
        try:
            watch.wait_for(" shows ")
        finally:
            watch.kill()
    elif words[1] in ("train", "profile"):
        started(Path(), smaller)
    else:
        status, out, err = run(*smaller[1:])
        assert status == 0, out + err


@pytest.mark.parametrize("module", BENCHMARKS)
def test_benchmarks_say_what_they_measure_and_take_what_the_documents_give_them(module):
    text = started(ROOT, [module, "--help"])
    assert "usage: " in text
    for each in COMMANDS:
        if module not in each.words:
            continue
        given = each.words[each.words.index(module) + 1 :]
        kind = next((word for word in given[:1] if not word.startswith("-") and word.islower()), None)
        if kind is not None and any(word.startswith("-") for word in given):
            text += started(ROOT, [module, kind, "--help"])
        for word in (*given[:1], *(word for word in given if word.startswith("-"))):
            assert word in text or not word.strip("-").islower(), f"{each.text}: {word}"


@pytest.mark.parametrize("words", [("benchmarks.planner", "help"), ("benchmarks.study", "year")], ids=" ".join)
def test_benchmarks_of_a_few_seconds_are_run(words):
    assert any(set(words) <= set(each.words) for each in COMMANDS)
    assert started(ROOT, words)


@pytest.mark.parametrize("line", FLAG_LINES)
def test_the_flag_knows_what_the_documents_give_it(line):
    words = shlex.split(re.sub(r"<[^>]*>", "", line))
    flags, others = find_flags(words[words.index("recycle.megatron") + 1 :])
    assert flags.on
    assert not [word for word in others if "recycle" in word]


@pytest.mark.parametrize("path", FILES)
def test_scripts_and_tests_that_the_documents_name_are_there(path):
    assert (ROOT / path).exists()
