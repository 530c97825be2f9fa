"""Every command of the documents: verbs and options exist, and what takes seconds is run, long ones at a small size."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import click
import pytest

from harness.documents import COMMANDS, DOCUMENTS, FENCE, shell_lines
from harness.forked import Forked
from harness.paths import ROOT, python_path
from harness.started import Started
from recycle.cli.verbs import VERBS, group
from recycle.megatron.flag.command.flags import find_flags

# What makes a verb's commands small enough to be run; those of other verbs are looked at only.
SMALLER = {
    "plan": ["--moves", "1", "--prove", "0s"],
    "check": [],
    "show": [],
    "explain": [],
    "catalogue": ["-D", "3", "-P", "4", "-M", "2", "--failures", "2", "--moves", "1"],
    "doctor": shlex.split(
        "--num-layers 8 --micro-batch-size 1 --global-batch-size 256 --pipeline-model-parallel-size 4 "
        "--distributed-backend gloo --transformer-impl local"
    ),
    "study": ["-D", "2", "-P", "2", "-M", "2", "--seeds", "1"],
    "watch": ["--port", "0"],
    "train": ["-D", "2", "-P", "3", "-M", "2", "--model", "tiny.toml", "--iterations", "2", "-o", "trained"],
}
LOOKED_AT = {
    "recycle kill": "tests/test_kill_verb.py kills processes with it",
    "recycle join": "tests/survival/test_joining.py brings servers back with it",
    "recycle train job.toml -o /shared/run": "a run on several hosts: tests/survival/test_hosts.py has some",
    "recycle show /shared/run": "the same run: tests/test_losses_verb.py draws the losses of two",
    "python -m recycle.megatron": "tests/megatron/flag runs it on Megatron's scripts",
    "python3 -m venv": "Python's own",
    "python -c": "it names the installed torch",
    "torchrun --nproc-per-node 4 -m recycle.megatron": "the end of a tutorial, in stock Megatron",
    "git clone": "it fetches Megatron-LM",
    "python -m scripts.mutants": "it runs tests for minutes",
    "python scripts/plain_torch.py": "tests/test_plain_torch.py runs it",
    "python scripts/make_cli_reference.py": "tests/test_cli_reference.py compares what it writes",
    "python scripts/make_compatibility.py": "tests/test_compatibility.py compares what it writes",
    "python scripts/make_schedules.py": "tests/test_schedules.py compares what it writes",
    "python scripts/make_figures.py": "tests/view/test_svg.py compares what it writes",
    "python scripts/make_map.py": "tests/test_architecture.py compares what it writes",
    "PYTHONPATH=$PWD/.megatron-0.18.2 pytest": "as tests/megatron/test_other_releases.py does",
    "eval": "tests/test_help.py completes words",
    "pip install": "tests/test_package.py installs a wheel",
    "pip wheel": "it fetches torch",
    "pytest": "a part of scripts/test, or of what it runs",
    "ruff": "a part of scripts/test",
    "mypy": "a part of scripts/test",
    "lint-imports": "a part of scripts/test",
    "mkdocs": "a part of scripts/test",
    "scripts/demo": "minutes: tests/survival/test_kills.py has its kills and its rejoin",
    "scripts/develop": "it installs what scripts/test does",
    "LD_PRELOAD=libnccl.so.2 scripts/gpu-check": "it takes a GPU",
    "scripts/gpu-check": "tests/test_gpu_check.py runs what goes without a GPU",
    "scripts/gpu-pack": "it fetches 36 MB",
    "scripts/pretend-gpu": "tests/test_pretended_gpu.py runs it where its gigabytes are installed",
    "scripts/test": "it runs this",
    "source": "of the shell",
}
"""The commands that no test here runs, by how they begin, and why; those of ``recycle`` are parsed."""

REST = {"...", "<its", "arguments>"}
"""What stands for the rest of a Megatron job's command line."""

TINY = "layers = 6\nhidden = 16\nheads = 2\nsequence = 8\nvocabulary = 256\n"


VERB_COMMANDS = [command for command in COMMANDS if command.words[0] == "recycle"]


def begins(words, known):
    """Whether a command begins as one that is known."""
    return any(words[: len(each.split())] == tuple(each.split()) for each in known)


def as_typed(words):
    """A command with something in the place of what a reader puts there."""
    if words[1] == "doctor":
        return tuple(word for word in words if word not in REST)
    given = {"PLAN": "plan.json", "...": "job.toml"}
    return tuple(given.get(word, word.removeprefix("/shared/")) for word in words)


TO_RUN = sorted({as_typed(each.words) for each in VERB_COMMANDS if not (each.marked or begins(each.words, LOOKED_AT))})


FLAG_LINES = sorted(
    {
        line.strip()
        for path in DOCUMENTS
        for line in path.read_text().replace("\\\n", " ").splitlines()
        if line.startswith("torchrun") and "-m recycle.megatron" in line and "--pipeline-schedule" in line
    }
)
FILES = sorted(
    {
        found.rstrip(".")
        for path in DOCUMENTS
        for found in re.findall(r"(?<![\w/.])(?:scripts|tests|examples)/[\w./-]*\w", path.read_text())
    }
)


def test_every_command_is_run_or_it_is_said_what_does_instead():
    ours = [
        each.words for each in COMMANDS if each.words[0] == "python" and "-m benchmarks." not in " ".join(each.words)
    ]
    others = [each.words for each in VERB_COMMANDS if not each.marked and begins(each.words, LOOKED_AT)]
    lines = ours + others + [tuple(each.split()) for each in shell_lines()]
    assert [" ".join(each) for each in lines if not begins(each, LOOKED_AT)] == []
    assert [known for known in LOOKED_AT if not any(begins(each, [known]) for each in lines)] == []
    named = [path for why in LOOKED_AT.values() for path in re.findall(r"tests/[\w/.]+\w", why)]
    assert [path for path in named if not (ROOT / path).exists()] == []


def name_of(command):
    return f"{command.document}: {command.text[:60]}"


def test_the_documents_have_commands_of_every_verb():
    assert {command.words[1] for command in VERB_COMMANDS} == set(VERBS)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """What the documents' commands read, by the names that they give it."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "schedules").symlink_to(ROOT / "schedules")
    page = (ROOT / "docs" / "tutorials" / "plan-around-a-failure.md").read_text()
    job = next(block["body"] for block in FENCE.finditer(page) if block["language"] == "toml")
    (folder / "job.toml").write_text(job)
    (folder / "tiny.toml").write_text(TINY)
    (folder / "model.toml").write_text(TINY)
    small = ["schedules/paper.toml", "-D", "2", "-P", "2", "-M", "2"]
    for words in (
        ["plan", *small, "--moves", "1", "-o", "plan.json"],
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
    """Run a command of ``recycle`` in a folder."""
    variables = os.environ | {"PYTHONPATH": python_path()}
    with Forked(["-m", "harness.scripts.train", *words[1:]], variables, folder) as command:
        said = command.stdout.read()
    assert command.returncode == 0, f"{shlex.join(words)}: {said}"


@pytest.mark.parametrize("command", VERB_COMMANDS, ids=name_of)
def test_verbs_and_options_exist(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verb = group.get_command(click.Context(group), command.words[1])
    verb.make_context(command.words[1], [*command.words[2:]])


def made_smaller(words):
    """A command with other sizes: those that it has are taken out, because an option is given once."""
    # For a plan that a catalogue has, nothing is searched.
    less = [] if words[1] == "plan" and "--catalogue" in words else SMALLER[words[1]]
    options = [each.opts for each in group.get_command(click.Context(group), words[1]).params]
    same = {name: names[0] for names in options for name in names}
    given, left = {same.get(each) for each in less} - {None}, iter(words)
    # A search ends after its moves, or its time.
    given |= {"--budget"} if "--moves" in less else set()
    kept = []
    for word in left:
        name, _, value = word.partition("=")
        if same.get(name) not in given:
            kept.append(word)
        elif not value:
            next(left)
    return [*kept, *less]


@pytest.mark.long
@pytest.mark.parametrize("words", TO_RUN, ids=" ".join)
def test_what_takes_seconds_is_run(words, inputs, tmp_path, monkeypatch, run):
    shutil.copytree(inputs, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    smaller = made_smaller(words)
    if words[1] == "watch":
        watch = Started([sys.executable, "-c", "from recycle.cli import main; main()", *smaller[1:]])
        try:
            watch.wait_for(" shows ")
        finally:
            watch.kill()
    elif words[1] == "train":
        started(Path.cwd(), smaller)
    else:
        status, out, err = run(*smaller[1:])
        assert status == 0, out + err


@pytest.mark.parametrize("line", FLAG_LINES)
def test_the_flag_knows_what_the_documents_give_it(line):
    words = shlex.split(re.sub(r"<[^>]*>", "", line))
    flags, others = find_flags(words[words.index("recycle.megatron") + 1 :])
    assert flags.on
    assert not [word for word in others if "recycle" in word]


@pytest.mark.parametrize("path", FILES)
def test_scripts_and_tests_that_the_documents_name_are_there(path):
    assert (ROOT / path).exists()


LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
TEXTS = [
    *(path for path in ROOT.glob("*.md")),
    *(path for folder in ("docs", "benchmarks", "schedules") for path in (ROOT / folder).rglob("*.md")),
]


def anchors_of(text):
    """What links can name in a page: its headings, as GitHub and the site make names of them."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    bare = [re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head)) for head in heads]
    return {"#" + re.sub(r"\s", "-", head.strip().lower()) for head in bare}


def dead_links(path):
    """The links of a page to what is not there."""
    found = []
    for target, anchor in LINK.findall(FENCE.sub("", path.read_text())):
        if "://" in target:
            continue
        place = (path.parent / target).resolve() if target else path
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors_of(place.read_text())):
            found.append(target + anchor)
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_what_is_there(path):
    assert dead_links(path) == []


def test_a_dead_link_and_a_dead_heading_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# A `code` head: one\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md#a-code-head-one) [b](other.md#two) [c](none.md) [d](#here) [e](#there) [f](http://x/y)\n"
    )
    assert dead_links(page) == ["other.md#two", "none.md", "#there"]
