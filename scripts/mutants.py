#!/usr/bin/env python3
"""Which mistakes do the tests find? ``python -m scripts.mutants 100 --seed 7 -- -m "not long"``.

Draws places in ``recycle/``, each room's in turn, and puts a small mistake into each, in a copy of this checkout. The
tests that are near are run, up to the first failure: the file that mirrors it, those that import it, and those of the
folders that mirror its own. Arguments after ``--`` go to pytest. A mistake that no test finds survives; the last lines
list these. The same seed draws the same mistakes as long as ``recycle/`` is the same.
"""

import argparse
import ast
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "out", "__pycache__", ".*_cache", ".hypothesis")
LIMIT = 1800.0
"""Seconds after which the tests of a mutant are ended: it hangs, which is found out as well."""

PAIRS = ((ast.Eq, ast.NotEq), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.In, ast.NotIn), (ast.Is, ast.IsNot))
SWAPPED = dict([*PAIRS, *((other, one) for one, other in PAIRS)])


class Mutant(NamedTuple):
    """A mistake.

    Attributes:
        path: of the file, below the checkout.
        line: where it is, from 1.
        start: the first byte of what is replaced.
        end: the byte after it.
        text: what comes there.
    """

    path: Path
    line: int
    start: int
    end: int
    text: str

    def change(self, content: bytes) -> bytes:
        """The file with the mistake."""
        return content[: self.start] + self.text.encode() + content[self.end :]

    def describe(self) -> str:
        """The place, what was there, and what comes there, in one line."""
        before = (ROOT / self.path).read_bytes()[self.start : self.end].decode()
        shown = [" ".join(each.split())[:70] for each in (before, self.text)]
        return f"{self.path}:{self.line}: {shown[0]}  ->  {shown[1]}"


def changed(node: ast.AST) -> ast.AST | None:
    """Something else in the place of an expression or statement, if it is one that can be mistaken."""
    match node:
        case ast.Compare(left, [operator, *others], comparators):
            return ast.Compare(left, [SWAPPED[type(operator)](), *others], comparators)
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            return ast.Constant(value + 1)
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Assign([ast.Attribute() | ast.Subscript()]):
            return ast.Pass()
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            return ast.Return(ast.Constant(None))
    return None


def conditions(node: ast.AST) -> list[ast.expr]:
    """The conditions that decide what a node does next."""
    match node:
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            return [test]
        case ast.comprehension(_, _, tests):
            return tests
        case ast.BoolOp(_, values):
            return values
    return []


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All that is computed: no annotation."""
    yield tree
    for name, field in ast.iter_fields(tree):
        if name not in ("annotation", "returns", "type_params"):
            for each in field if isinstance(field, list) else [field]:
                if isinstance(each, ast.AST):
                    yield from nodes(each)


def mutants(path: Path) -> list[Mutant]:
    """All that are known of a file."""
    content = (ROOT / path).read_bytes()
    starts = [0, *itertools.accumulate(len(each) for each in content.splitlines(keepends=True))]
    found = []
    for node in nodes(ast.parse(content)):
        instead = changed(node)
        pairs = [] if instead is None else [(node, ast.unparse(ast.fix_missing_locations(instead)))]
        pairs += [(each, f"(not ({ast.unparse(each)}))") for each in conditions(node)]
        for place, text in pairs:
            assert isinstance(place, ast.expr | ast.stmt)
            start = starts[place.lineno - 1] + place.col_offset
            end = starts[(place.end_lineno or 0) - 1] + (place.end_col_offset or 0)
            written = f"({text})" if isinstance(place, ast.Compare) else text
            found.append(Mutant(path, place.lineno, start, end, written))
    return found


def compiles(mutant: Mutant) -> bool:
    """Whether it is other Python; within a string that is formatted, it may be none."""
    content = (ROOT / mutant.path).read_bytes()
    try:
        return ast.dump(ast.parse(mutant.change(content))) != ast.dump(ast.parse(content))
    except SyntaxError:
        return False


def draw(count: int, seed: int) -> list[Mutant]:
    """So many of all rooms, each room's in turn."""
    choose = random.Random(seed)
    rooms: dict[str, list[Mutant]] = {}
    for path in sorted((ROOT / "recycle").rglob("*.py")):
        path = path.relative_to(ROOT)
        rooms.setdefault(path.parts[1] if len(path.parts) > 2 else "", []).extend(mutants(path))
    order = [each for each in sorted(rooms) if rooms[each]]
    choose.shuffle(order)
    drawn = (choose.choice(rooms[room]) for room in itertools.cycle(order))
    return list(itertools.islice(filter(compiles, drawn), count))


def near(path: Path) -> list[str]:
    """The files and folders of tests that are near to a file, the nearest first."""
    inner = path.relative_to("recycle")
    package, _, name = ".".join(path.with_suffix("").parts).removesuffix(".__init__").rpartition(".")
    imports = (
        rf"(from|import) {re.escape(f'{package}.{name}'.strip('.'))} |from {re.escape(package)} import .*\b{name}\b"
    )
    tests = ROOT / "tests"
    above = [tests / each for each in (inner.parent, *inner.parent.parents)]
    mirrored = [each / f"test_{inner.stem}.py" for each in above]
    importing = [each for each in sorted(tests.rglob("test_*.py")) if re.search(imports, each.read_text())]
    rooms = [each for each in above[:-1] if each.exists()] or sorted(tests.glob("test_*.py"))
    found = dict.fromkeys(each for each in (*mirrored, *importing, *rooms) if each.exists())
    return [str(each.relative_to(ROOT)) for each in found]


def killer(mutant: Mutant, options: list[str]) -> str | None:
    """The test that finds a mutant, in a copy of the checkout; None if none does."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(shutil.copytree(ROOT, Path(folder) / "recycle", symlinks=True, ignore=LEFT_OUT))
        target = checkout / mutant.path
        target.write_bytes(mutant.change(target.read_bytes()))
        words = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--basetemp", f"{folder}/tests", *options]
        with subprocess.Popen(
            [*words, *near(mutant.path)],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return "the limit of time"
    # 5 says that no test was there.
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", output, re.MULTILINE)
    return None if process.returncode in (0, 5) else found[1] if found else output[-300:]


def main() -> None:
    """Print a line for each mutant, and then those that survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants that are tried at the same time")
    given = [*sys.argv[1:], "--"]
    chosen, options = parser.parse_args(given[: given.index("--")]), given[given.index("--") + 1 : -1]
    drawn, survivors = draw(chosen.count, chosen.seed), []
    print(f"seed {chosen.seed}", flush=True)
    with ThreadPoolExecutor(chosen.jobs) as threads:
        for mutant, found in zip(drawn, threads.map(lambda each: killer(each, options), drawn), strict=True):
            print(f"{'killed' if found else 'SURVIVES'}  {mutant.describe()}  {found or ''}", flush=True)
            survivors += [] if found else [mutant]
    print(f"seed {chosen.seed}: {len(survivors)} of {len(drawn)} survive", *map(Mutant.describe, survivors), sep="\n")


if __name__ == "__main__":
    main()
