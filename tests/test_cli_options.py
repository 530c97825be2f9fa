"""Which options each branch of a verb reads. The others are refused, in one line with the remedy."""

import re
from pathlib import Path

import click
import pytest

from harness.examples import paper_plan
from recycle.cli.verbs import VERBS, group
from recycle.plan.document import save_plan

JOB = {"--pipelines", "--stages", "--micro-batches"}
SEARCH = {"--routing", "--optimizer", "--backward", "--seed"}
WRITTEN = {"--svg", "--html", "--trace", "--losses", "--csv"}
EVERY = None

PLAN = {"--catalogue", "--dead", "--budget", "--moves", "--prove", "--output", "--json"}
CATALOGUE = {"--failures", "--budget", "--moves", "--output"}
STUDY = {
    *("--policy", "--iteration", "--layers", "--constant"),
    *("--seeds", "--json"),
}
PRICED = {"--gpus-per-server", "--price"}

READ = {
    ("plan", "{job}"): JOB | SEARCH | PLAN,
    ("plan", "{job}", "--moves", "1"): JOB | SEARCH | PLAN - {"--budget"},
    ("plan", "--catalogue", "{catalogue}"): {*JOB, "--catalogue", "--dead", "--output", "--json"},
    ("catalogue", "{job}", "-o", "out.zip"): JOB | SEARCH | CATALOGUE,
    ("catalogue", "{job}", "-o", "out.zip", "--moves", "1"): JOB | SEARCH | CATALOGUE - {"--budget"},
    ("check", "{plan}"): EVERY,
    ("check", "{plan}", "--against", "{plan}"): EVERY,
    ("explain", "{plan}"): EVERY,
    ("show", "{plan}"): {*WRITTEN, "--against", "--by", "--iterations", "--list", "--json"},
    ("show", "{plan}", "--list"): {*WRITTEN, "--against", "--iterations", "--list"},
    ("show", "{plan}", "--json"): {*WRITTEN, "--against", "--by", "--iterations", "--json"},
    ("show", "{plan}", "--svg", "out.svg"): {*WRITTEN, "--against", "--by", "--iterations", "--list", "--json"},
    ("show", "{plan}", "--csv", "out.csv"): {*WRITTEN, "--list", "--json"},
    ("show", "{plan}", "--csv", "-"): {*WRITTEN},
    ("show", "{plan}", "--losses", "out.svg"): {*WRITTEN, "--against", "--list", "--json"},
    ("study", "{job}"): JOB | STUDY | PRICED | {"--trace", "--servers", "--mtbf-of-job"},
    ("study", "{job}", "--mtbf-of-job", "7h", "--repair", "4h"): JOB | STUDY | PRICED | {"--mtbf-of-job", "--repair"},
    ("train", "{job}"): EVERY,
    ("watch", "{plan}"): EVERY,
    ("doctor", "script"): EVERY,
    ("kill", "run", "W0_0"): EVERY,
    ("join", "run"): EVERY,
}
"""By what chooses a branch: the options that it reads."""

GIVEN = {
    **dict.fromkeys(("--pipelines", "--stages", "--micro-batches", "--moves", "--seed", "--iterations"), "2"),
    **dict.fromkeys(("--layers", "--servers", "--gpus-per-server"), "16"),
    **dict.fromkeys(("--budget", "--prove", "--repair"), "1s"),
    "--routing": "free",
    "--optimizer": "global",
    "--backward": "fused",
    "--dead": "W0_0",
    "--catalogue": "{catalogue}",
    "--against": "{plan}",
    "--by": "pipeline",
    "--price": "2/serverh",
    "--trace": "shared-gpus",
    "--output": "-",
    "--json": None,
    "--list": None,
}
"""What each option is given, where one that is not read has to be refused."""


def options_of(verb):
    params = group.get_command(click.Context(group), verb).params
    return {each.opts[-1] for each in params if isinstance(each, click.Option)}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with a file of each kind that a verb reads; no test writes into it."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "job.toml").write_text("pipelines = 2\nstages = 2\nmicro_batches = 2\n")
    save_plan(paper_plan(), folder / "plan.json")
    save_plan(paper_plan(failed=()), folder / "whole.json")
    job, catalogue = str(folder / "job.toml"), str(folder / "catalogue.zip")
    group(["catalogue", job, "--failures", "1", "--moves", "1", "-o", catalogue], standalone_mode=False)
    return folder


@pytest.fixture
def files(inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return {path.stem: str(path) for path in inputs.iterdir()}


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_read_by_some_branch(verb):
    read = [options_of(verb) if read is EVERY else read for words, read in READ.items() if words[0] == verb]
    assert set().union(*read) == options_of(verb)


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_with_two_values_is_refused(refused, verb):
    for each in group.get_command(click.Context(group), verb).params:
        if isinstance(each, click.Option) and not each.is_flag and not each.multiple:
            for flag in each.opts:
                err = refused(verb, flag, "1", each.opts[-1], "2")
                assert err == f"recycle: {each.opts[-1]}: it was given 2 times; give it once\n"


@pytest.mark.parametrize("branch", [each for each in READ if READ[each] is not EVERY], ids=" ".join)
def test_what_a_branch_does_not_read_it_refuses_with_the_remedy(run, files, branch):
    words = [each.format(**files) for each in branch]
    before = sorted(Path.cwd().iterdir())
    for flag in sorted(options_of(branch[0]) - READ[branch]):
        value = GIVEN[flag]
        status, out, err = run(*words, flag, *(() if value is None else (value.format(**files),)))
        assert (status, out, err.count("\n")) == (2, "", 1), (flag, err)
        assert re.search(r"leave|give", err), err
        assert flag in err or "standard output" in err
        assert sorted(Path.cwd().iterdir()) == before


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("--csv", "-", "--svg", "-"), "standard output"),
        (("--svg", "-", "--json"), "standard output"),
        (("--list", "--json"), "standard output"),
        (("--svg", "a.svg", "--losses", "a.svg"), "a.svg"),
    ],
)
def test_two_things_that_go_to_one_place_are_refused(refused, files, words, place):
    err = refused("show", files["whole"], *words)
    assert err == f"recycle: {place}: two options write there; leave one of them out, or give it another file\n"


def test_a_plan_on_standard_output_has_no_report_there(refused, files):
    for words in ((files["job"], "--moves", 1), ("--catalogue", files["catalogue"])):
        assert "--json: -o - takes no account of it; leave it out" in refused("plan", *words, "-o", "-", "--json")


def test_nothing_is_written_over_what_is_shown(refused, files, tmp_path):
    plan, run, other = (tmp_path / name for name in ("plan.json", "run", "other.json"))
    run.mkdir()
    for path in (plan, run / "plan.json", run / "run.json"):
        path.write_bytes(Path(files["plan"]).read_bytes())
    other.symlink_to(plan)
    for shown, target in (
        (plan, plan),
        (other, plan),
        (plan, other),
        (run, run / "plan.json"),
        (run, run / "run.json"),
    ):
        for words in ((shown, "--trace", target), (files["plan"], "--against", shown, "--trace", target)):
            before = target.read_bytes()
            assert (
                refused("show", *words)
                == f"recycle: {target}: it is shown, and would be overwritten; give another file\n"
            )
            assert target.read_bytes() == before


def test_one_place_by_two_names_is_one_place(refused, files, tmp_path):
    (tmp_path / "b.svg").symlink_to("a.svg")
    err = refused("show", files["whole"], "--svg", tmp_path / "a.svg", "--losses", tmp_path / "b.svg")
    assert f"{tmp_path / 'a.svg'}: two options write there" in err
