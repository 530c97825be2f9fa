"""Other releases of Python and torch: those of the table, each in an environment that scripts/test --long makes."""

import os
import re
import tomllib

import pytest

from harness.nested_tests import named_tests, require_passed
from harness.paths import ROOT
from scripts.combinations import combinations

TESTS = named_tests(
    "tests/test_package.py::test_an_installed_wheel_plans_and_draws",
    "tests/survival/test_kills.py::test_two_at_once",
    "tests/megatron/flag/test_surviving.py::test_killed_at_any_moment_nothing_changes_and_the_checkpoint_loads_in_stock",
    "tests/megatron/flag/test_returns.py::test_a_server_of_each_stage_comes_back_in_turn_and_nothing_changes",
)
LONG = [each for each in combinations() if each.is_long]


def test_the_table_says_what_is_installed_for_every_commit() -> None:
    constraints = (ROOT / "scripts" / "constraints.txt").read_text()
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    (others,) = re.findall(r"setup_releases ([\d. ]+)\"", (ROOT / "scripts" / "test").read_text())
    always = [each for each in combinations() if not each.is_long]
    assert {each.python for each in always} == set(re.findall(r"PYTHON:-python([\d.]+)", setup))
    assert {each.torch for each in always} == set(re.findall(r"^torch==([\d.]+)", constraints, re.M))
    tried = {release for each in always for release in each.megatron}
    assert tried == {*re.findall(r"install_megatron ([\d.]+)$", setup, re.M), *others.split()}


def test_every_python_of_the_package_is_in_the_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classified = {each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)}
    assert classified == {each.python for each in combinations()}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("test", TESTS, ids=lambda each: each.rpartition("::")[2])
@pytest.mark.parametrize("combination", LONG, ids=lambda each: each.folder.name)
def test_the_package_works_and_what_is_killed_changes_nothing(combination, test) -> None:
    if not (combination.folder / "installed").exists():
        pytest.skip(f"{combination.folder.name} is not here: scripts/test --long makes it, if it finds that Python")
    python = combination.folder / "bin" / "python"
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    require_passed("--timeout", "1800", test, python=python, python_path=str(ROOT), environment={"PATH": path})
