"""Benchmarks and scripts, which no other test runs, name only what there is."""

import ast
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


def is_there(module, name):
    """Whether a name, or a module that nobody has imported yet, is in a module."""
    return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None
