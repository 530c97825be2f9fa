"""What the command line says of itself: to who asks for help, and to shells."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.examples import paper_plan
from recycle.cli.verbs import VERBS
from recycle.plan.document import save_plan


def test_help_names_every_verb_and_imports_neither_solver_nor_torch(ran):
    out = ran("--help")
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


def test_without_a_verb_there_is_help(run, ran):
    assert ran() == run("--help")[1]


@pytest.mark.parametrize("verb", ["plan", "catalogue", "train", "study"])
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


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a job, a run and a catalogue."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "job.toml").write_text("pipelines = 2\nstages = 2\nmicro_batches = 2\n")
    (folder / "run").mkdir()
    save_plan(paper_plan(), folder / "run" / "plan.json")
    command = [sys.executable, "-c", "from recycle.cli import main; main()", "catalogue", "job.toml", "--moves", "1"]
    subprocess.run([*command, "-o", "plans.zip"], cwd=folder, check=True, capture_output=True)
    return folder


def completed(words, folder):
    command = [sys.executable, "-c", "from recycle.cli import main; main()"]
    position = str(len(words.split()) - 1)
    variables = {"_RECYCLE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": position}
    environment = {**os.environ, **variables, "PYTHONPATH": str(Path(__file__).parent.parent)}
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    return [each.removeprefix("plain,") for each in ended.stdout.split()]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("recycle cata", ["catalogue"]),
        ("recycle plan --rout", ["--routing"]),
        ("recycle plan -D 2 -P 3 -M 2 --dead W1", ["W1_0", "W1_1", "W1_2"]),
        ("recycle plan job.toml --dead W0_0,W1_1", ["W0_0,W1_1"]),
        ("recycle plan nowhere.toml --dead W", []),
        ("recycle kill run W1_2,W0_", ["W1_2,W0_0", "W1_2,W0_1", "W1_2,W0_2", "W1_2,W0_3"]),
        ("recycle join run --server W2_3", ["W2_3"]),
        ("recycle study --policy recycle,oob", ["recycle,oobleck"]),
        ("recycle train --plan run/plan.json --dead W2_", ["W2_0", "W2_1", "W2_2", "W2_3"]),
        ("recycle plan --catalogue plans.zip --dead W1_", ["W1_0", "W1_1"]),
        ("recycle study --trace l", ["language-model-cluster", "file,l"]),
    ],
)
def test_shells_complete_verbs_options_servers_policies_and_traces(files, words, found):
    assert completed(words, files) == found
