"""Which options a training script adds to Megatron's, where it can be read."""

import ast
from collections.abc import Iterator
from pathlib import Path


def added_options(script: Path) -> frozenset[str]:
    """The options that are named in a script, beside it, or in what it imports from there.

    What cannot be read, or is no Python, adds none.
    """
    folder = script.parent
    files = {script, *(folder.glob("*.py") if script.is_file() else ())}
    files |= {path for module in _imported(script) for path in _files_of(folder, module)}
    return frozenset(option for path in files for option in _options(path))


def _options(path: Path) -> Iterator[str]:
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
            yield node.value


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def _files_of(folder: Path, module: str) -> tuple[Path, Path]:
    place = folder.joinpath(*module.split("."))
    return place.with_suffix(".py"), place / "__init__.py"


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])
