"""Benchmarks and scripts, which no other test runs, name only what there is."""

import ast
import os
import shutil
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = ("recycle", "harness", "benchmarks")
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("scripts/*.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_is_imported_is_there(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            assert [each.name for each in node.names if not is_there(node.module, each.name)] == []


def test_an_environment_whose_making_was_interrupted_is_made_again(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("setup.sh", "constraints.txt"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    # In the place of Python: pip comes after it, and an interrupt between.
    python = tmp_path / "python"
    made = ".venv/bin/python"
    python.write_text(
        f"""#!/bin/sh
        [ "$2" = venv ] || exit 0
        mkdir -p .venv/bin
        [ -e {made} ] && ln -s python .venv/bin/pip
        ln -sf {python} {made}
        """
    )
    python.chmod(0o755)
    command = ["bash", "-c", "source scripts/setup.sh; setup plan; ls .venv/bin"]

    def setup():
        environment = {**os.environ, "PYTHON": str(python)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    for found in (["python"], ["pip", "python"]):
        done = setup()
        assert (done.returncode, done.stdout.split()[-len(found) :]) == (0, found), done.stderr
    assert "Making" not in setup().stdout


def is_there(module, name):
    """Whether a name, or a module that nobody has imported yet, is in a module."""
    return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None
