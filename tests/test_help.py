"""What the command line says of itself: to who asks for help, and to shells."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recycle.cli.verbs import VERBS


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


@pytest.mark.parametrize(
    ("verb", "option"),
    [*((verb, "--output") for verb in ("plan", "catalogue", "train")), ("study", "--policy")],
)
def test_the_help_of_a_verb_begins_with_what_is_its_own(run, verb, option):
    _, out, _ = run(verb, "--help")
    own, of_job = out.split("Options that describe a job")
    assert option in own
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
        ("recycle show plan.json --by pip", ["pipeline"]),
    ],
)
def test_shells_complete_verbs_options_and_choices(tmp_path, words, found):
    assert completed(words, tmp_path) == found
