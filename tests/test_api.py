"""Planning from Python."""

import inspect
import logging
import re
import subprocess
import sys
from xml.etree import ElementTree

import click
import msgspec
import pytest

import recycle
from harness.paths import ROOT
from recycle.api.planned import Planned
from recycle.cli.verbs import group
from recycle.errors import IllegalPlan, UserError
from recycle.plan.document import encode_plan
from tests.view.disturbed import DEATH, write_disturbed

NAMELESS = ("__version__", "Planned", "RecordedRun")
"""What other calls return, and the version."""

PAPER = {"pipelines": 3, "stages": 4, "micro_batches": 6, "optimizer": 3, "limit": 6}


@pytest.fixture
def log_handlers():
    """Handlers of logs are those of one test."""
    handlers = list(logging.getLogger("recycle").handlers)
    yield
    logging.getLogger("recycle").handlers[:] = handlers


def test_a_question_is_a_few_lines(tmp_path):
    job = recycle.Job(**PAPER)
    plan = recycle.make_plan(job, dead=["W1_2"], moves=5000)
    assert (plan.period, plan.bound, plan.throughput, plan.dead) == (30, 30, 1.0, ["W1_2"])
    assert plan.check() == []
    assert plan.explain().time.endswith("That is proven to be the least.")
    plan.save(tmp_path / "plan.json")
    again = recycle.load_plan(str(tmp_path / "plan.json"))
    assert encode_plan(again.plan) == encode_plan(plan.plan)


@pytest.mark.parametrize(
    "keys", [{}, {"limit": 5}, {"placement": "v-shaped"}, {"released_at_input_gradient": 3, "held": 4}]
)
@pytest.mark.parametrize("mode", ["split", "fused"])
def test_the_peak_memory_of_a_plan_is_what_the_command_says(tmp_path, run, keys, mode):
    job = recycle.Job(pipelines=3, stages=4, micro_batches=6, **keys)
    plan = recycle.make_plan(job, "W1_2", moves=5, mode=mode)
    plan.save(tmp_path / "plan.json")
    status, text, _ = run("check", tmp_path / "plan.json", "--json")
    assert (status, msgspec.json.decode(text)["peak_memory"]) == (0, plan.peak_memory)
    assert "W1_2" not in plan.peak_memory
    assert all(amount > 0 for amount in plan.peak_memory.values())


def test_a_plan_is_drawn_in_a_notebook():
    plan = recycle.make_plan(recycle.Job(**PAPER), moves=10)
    assert ElementTree.fromstring(plan._repr_svg_()).tag.endswith("svg")
    assert plan.html().lower().startswith("<!doctype html>")
    assert repr(plan) == f"<plan of job, dead: none, period {plan.period} slots, bound {plan.bound} slots>"


def test_what_cannot_be_drawn_is_text_in_a_notebook(monkeypatch):
    plan = recycle.make_plan(recycle.Job(**PAPER), moves=10)
    turned = {server: tuple(reversed(program)) for server, program in plan.plan.programs.items()}
    stuck = Planned(msgspec.structs.replace(plan.plan, programs=turned))
    assert stuck._repr_svg_() is None
    with pytest.raises(IllegalPlan, match=r"^job: the plan is illegal \(.+\); recycle check shows where$"):
        stuck.svg()
    assert "<plan of job" in repr(stuck)
    monkeypatch.setattr("recycle.api.planned.MOST_DRAWN", 100)
    assert plan._repr_svg_() is None


def test_a_job_file_and_its_keys_give_the_same_job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("pipelines = 3\nstages = 4\nmicro_batches = 6\n[costs]\noptimizer = 3\n[memory]\nlimit = 6\n")
    assert recycle.load_job(path) == recycle.load_job(str(path)) == recycle.Job(**PAPER)


def test_a_catalogue_is_made_as_it_is_told(tmp_path):
    job = recycle.Job(pipelines=2, stages=2, micro_batches=2)
    told = []
    note = lambda done, total: told.append((done, total))  # noqa: E731 - one line is enough
    recycle.make_catalogue(job, tmp_path / "a.zip", budget=0.01, seed=7, mode="fused global", progress=note)
    assert told[-1] == (3, 3)
    made = recycle.PlanCatalogue(tmp_path / "a.zip")
    assert made.plan().dead == []
    plan = made.plan("W0_1").plan
    assert (plan.provenance.seed, plan.provenance.budget, plan.form) == (7, "0.01 s", "lowered")
    assert (plan.mode.backward, plan.mode.optimizer) == ("fused", "global")


MODE = {"routing", "optimizer", "backward"}
ELSEWHERE = {
    # The job, the file and the table of results are arguments and results, and a catalogue has a class of its own.
    *("pipelines", "stages", "micro-batches", "output", "json", "catalogue"),
    *("constant", "policy"),
}


@pytest.mark.parametrize(
    ("verb", "function"),
    [
        ("plan", recycle.make_plan),
        ("catalogue", recycle.make_catalogue),
        ("study", recycle.compare_policies),
    ],
)
def test_a_function_has_the_options_of_its_verb(verb, function):
    options = {
        each.opts[-1].removeprefix("--")
        for each in group.get_command(click.Context(group), verb).params
        if isinstance(each, click.Option)
    }
    wanted = {"mode" if each in MODE else each.replace("-", "_") for each in options - ELSEWHERE}
    assert wanted <= set(inspect.signature(function).parameters)


def test_an_argument_is_named_by_its_error(tmp_path):
    job, path = recycle.Job(2, 2, 2), tmp_path / "c.zip"
    for call in (recycle.make_plan, recycle.compare_policies):
        with pytest.raises(UserError, match=r"^job is 3: give what recycle\.Job or "):
            call(3)
    for call, message in (
        (lambda: recycle.Job(0, 2, 2), "pipelines is 0: a job has at least one pipeline"),
        (lambda: recycle.Job(2, 2, 2, colour=3), "unknown key `colour`; the keys here are pipelines, "),
        (lambda: recycle.make_plan(job, dead=3), "dead is 3: give names of servers"),
        (lambda: recycle.make_plan(job, dead=["x"]), "server 'x'"),
        (lambda: recycle.make_plan(job, budget="soon"), "budget: 'soon' is no duration"),
        (lambda: recycle.make_plan(job, budget=None), "budget is None: give seconds"),
        (lambda: recycle.make_plan(job, moves="many"), "moves is 'many': give a number, 0 or more"),
        (lambda: recycle.make_plan(job, mode="quick"), ".*'quick' does not fit; give words of: fused or split; global"),
        (lambda: recycle.make_plan(job, mode="fused split"), ".*'split' does not fit"),
        (lambda: recycle.Job(2, "two", 2), "stages: Expected `int`, got `str`"),
        (lambda: recycle.Job(2, 2, 2, latency=[1, 2]), "latency has 2 values"),
        (lambda: recycle.make_catalogue(3, path), r"job is 3: give what recycle\.Job or "),
        (lambda: recycle.make_catalogue(job, path, -1), "failures is -1: give a number, 0 or more"),
        (lambda: recycle.make_catalogue(job, path, moves=0.5), "moves is 0.5: give a number"),
        (lambda: recycle.compare_policies(job, seeds=0), "seeds is 0: give a number, 1 or more"),
        (
            lambda: recycle.compare_policies(job, "dropping", seeds=1, mtbf_of_job="often", repair="4h"),
            "mtbf_of_job: 'often' is no duration",
        ),
        (
            lambda: recycle.compare_policies(job, "dropping", seeds=1, mtbf_of_job="7h"),
            "mtbf_of_job is '7h': give repair too",
        ),
        (
            lambda: recycle.compare_policies(job, "dropping", seeds=1, repair="4h"),
            "repair is '4h': a trace has its own repairs",
        ),
        (
            lambda: recycle.compare_policies(job, "dropping", seeds=1, mtbf_of_job="7h", repair="4h", servers=9),
            "servers is '9' and mtbf_of_job is",
        ),
        (lambda: recycle.compare_policies(job, ""), "policy '': give one at least, of recycle, "),
        (lambda: recycle.compare_policies(job, layers=0), "layers is 0: give a number, 1 or more"),
        (lambda: recycle.compare_policies(job, gpus_per_server=0), "gpus_per_server is 0: give a number, 1 or more"),
        (lambda: recycle.compare_policies(job, constants={"restart": "soon"}), "'soon' is no duration"),
        (lambda: recycle.compare_policies(job, constants={"restart": -1}), "constant restart is -1: give seconds"),
        (lambda: recycle.make_plan(job, moves=1).svg(0), "iterations is 0: give a number, 1 or more"),
    ):
        with pytest.raises(UserError, match=f"^{message}"):
            call()


ODD = {"a list": [3.5], "an object": object(), "nothing": None, "a text": "odd", "a number": -0.5, "a truth": True}
"""Values of every type; what is in brackets below may be one of them all the same."""


@pytest.mark.parametrize("value", list(ODD.values()), ids=list(ODD))
@pytest.mark.parametrize(
    ("call", "may_be"),
    [
        (lambda job, value: recycle.make_plan(job, value, moves=1), ()),
        (lambda job, value: recycle.make_plan(job, budget=value), ()),
        (lambda job, value: recycle.make_plan(job, moves=value, budget=0), (None,)),
        (lambda job, value: recycle.make_plan(job, moves=1, seed=value), ()),
        (lambda job, value: recycle.make_plan(job, moves=1, mode=value), ()),
        (lambda job, value: recycle.make_plan(job, moves=1).svg(value), ()),
        (lambda job, value: recycle.make_plan(job, moves=1).save(value), ("odd",)),
        (lambda job, value: recycle.load_job(value), ()),
        (lambda job, value: recycle.load_plan(value), ()),
        (lambda job, value: recycle.read_run(value), ()),
        (lambda job, value: recycle.read_run("nowhere.jsonl", value), ()),
        (lambda job, value: recycle.make_catalogue(job, value, 0, moves=0), ("odd",)),
        (lambda job, value: recycle.make_catalogue(job, "c.zip", value), ()),
        (lambda job, value: recycle.make_catalogue(job, "c.zip", 0, mode=value), ()),
        (lambda job, value: recycle.PlanCatalogue(value), ()),
        (lambda job, value: recycle.compare_policies(job, value), ()),
        (lambda job, value: recycle.compare_policies(job, "dropping", seeds=1, trace=value), (None,)),
        (lambda job, value: recycle.compare_policies(job, "dropping", seeds=1, mtbf_of_job=value, repair="4h"), ()),
        (lambda job, value: recycle.compare_policies(job, "dropping", seeds=1, mtbf_of_job="7h", repair=value), ()),
        (lambda job, value: recycle.compare_policies(job, "dropping", seeds=1, servers=value), (None,)),
        (lambda job, value: recycle.compare_policies(job, "dropping", seeds=1, iteration=value), (None,)),
        (lambda job, value: recycle.compare_policies(job, "dropping", seeds=1, layers=value), (None,)),
        (lambda job, value: recycle.compare_policies(job, "dropping", seeds=1, constants=value), (None,)),
        (lambda job, value: recycle.compare_policies(job, "dropping", seeds=1, constants={"restart": value}), ()),
        (lambda job, value: recycle.compare_policies(job, "dropping", seeds=value), ()),
        (lambda job, value: recycle.compare_policies(job, "dropping", gpus_per_server=value), (None,)),
        (lambda job, value: recycle.compare_policies(job, "dropping", price=value), (None,)),
    ],
)
def test_an_argument_of_any_type_is_taken_or_refused_in_words(log_handlers, tmp_path, monkeypatch, call, may_be, value):
    monkeypatch.chdir(tmp_path)
    job = recycle.Job(2, 2, 2)
    if any(value is each or (isinstance(value, str) and value == each) for each in may_be):
        call(job, value)
        return
    with pytest.raises(UserError):
        call(job, value)


def test_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    job = recycle.Job(2, 2, 2)
    few, share = numpy.int64(1), numpy.float32(0.0)
    assert recycle.make_plan(job, moves=few, seed=few, prove=share).check() == []
    assert recycle.make_plan(job, budget=few).check() == []


def test_a_script_that_makes_a_catalogue_runs_once(tmp_path):
    (tmp_path / "script.py").write_text(
        "import recycle\nprint('once')\nrecycle.make_catalogue(recycle.Job(2, 2, 2), 'c.zip', moves=1)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\n", "")


def test_the_page_runs_as_it_stands(log_handlers, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert all(f"recycle.{name}(" in page for name in recycle.__all__ if name not in NAMELESS)
    write_disturbed(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(block, names)
    assert names["plan"].check() == []
    assert names["losses"] == [4.0, 3.0, 2.0, 1.0]
    pandas = pytest.importorskip("pandas")
    run = names["run"]
    for rows in (names["rows"], run.iterations, run.failures, run.views):
        frame = pandas.DataFrame(rows)
        assert len(frame) == len(rows)
        assert all(isinstance(column, str) for column in frame.columns)

    for wrong, message in (
        ({"mtbf_of_job": 0, "repair": "4h"}, "give more than 0"),
        ({"mtbf_of_job": -1, "repair": "4h"}, "mtbf_of_job is -1: give seconds"),
        ({"trace": "none.csv"}, "none.csv"),
        ({"policies": "none"}, "policy 'none': there is none"),
    ):
        with pytest.raises(UserError, match=message):
            recycle.compare_policies(recycle.Job(2, 2, 2), **wrong)


def test_a_run_is_read_as_rows(tmp_path):
    run = recycle.read_run(write_disturbed(tmp_path / "run"))
    assert [(row["iteration"], row["loss"]) for row in run.iterations] == [(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)]
    (failure,) = run.failures
    assert (failure["time"], failure["server"], failure["view"]) == (DEATH / 1e6, "W1_2", 1)
    lost, back = run.views
    assert (lost["servers"], lost["iteration"], back["servers"]) == (11, 2, 12)
    # From the death to the first instruction behind it.
    assert lost["recovery"] == pytest.approx(0.0065)
    assert run.summary[0] == "1 failure, 1 rejoin, 1 iteration made again"
    assert {row["iteration"] for row in run.instructions} == {1, 2, 3, 4}
    assert run.html().lower().startswith("<!doctype html>")
    # Those of the last iterations, by themselves, have the same numbers and times.
    assert recycle.read_run(tmp_path / "run", 2).instructions == [
        row for row in run.instructions if row["iteration"] > 2
    ]
    with pytest.raises(UserError, match="give the folder of a run"):
        recycle.read_run("plan.json")
    with pytest.raises(UserError, match="no recordings here"):
        recycle.read_run(tmp_path)


def test_the_import_costs_nothing_and_planning_never_needs_torch():
    code = """
import sys, recycle
assert not {"ortools", "rich", "recycle.api.planned"} & sys.modules.keys()
plan = recycle.make_plan(recycle.Job(pipelines=2, stages=2, micro_batches=2), moves=10)
plan.svg()
assert not {"torch", "megatron", "numpy", "ortools"} & sys.modules.keys()
assert "make_plan" in dir(recycle)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
