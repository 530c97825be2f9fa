"""Tests that a test has run by another Python, or with another release: no process can import two."""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.paths import ROOT


def named_tests(*names: str) -> tuple[str, ...]:
    """Names of tests, for a module to keep: a name that no test has fails when tests are collected.

    Args:
        names: each a file from the root of the checkout, or a file, ``::`` and the name of a test with its parameters.
    """
    for name in names:
        file, _, test = name.partition("::")
        functions = {
            each.name for each in ast.parse((ROOT / file).read_text()).body if isinstance(each, ast.FunctionDef)
        }
        assert not test or test.partition("[")[0] in functions, f"{file} has no test {test}"
    return names


def require_passed(
    *words: str, python: Path | str = sys.executable, python_path: str, environment: Mapping[str, str] | None = None
) -> None:
    """Run tests in a process of their own.

    Args:
        words: their names and other words of pytest.
        python: with which.
        python_path: where it finds modules first.
        environment: further variables.
    """
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *words]
    variables = os.environ | {"PYTHONPATH": python_path, **(environment or {})}
    # It is no worker of these tests: it would take undisturbed runs of other releases.
    variables.pop("PYTEST_XDIST_WORKER", None)
    ended = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
