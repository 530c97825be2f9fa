"""What reaches under torch's process groups stands in one room."""

import ast
from pathlib import Path

import recycle

PACKAGE = Path(recycle.__file__).parent
UNDER_TORCH = {"ProcessGroupGloo", "distributed_c10d", "_distributed_c10d", "_C"}


def names(path):
    """All names that a file imports or uses, dotted ones by their parts."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield from alias.name.split(".")
        if isinstance(node, ast.Attribute):
            yield node.attr


def test_nobody_else_reaches_under_torch():
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if UNDER_TORCH & set(names(path))}
    assert found == {
        "control/store/tcp_store.py",  # how much torch's C++ logs, and nothing of groups
        "megatron/flag/world/sealed_objects.py",  # how objects are pickled, and nothing of groups
        "runtime/net/gloo/devices.py",
        "runtime/net/gloo/groups.py",
        "runtime/net/gloo/transfers.py",
        "runtime/net/process_groups.py",
    }
