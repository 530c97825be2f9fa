"""What a run can say when something is wrong, as its code has it: what the troubleshooting page must explain."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.paths import ROOT

PACKAGE = ROOT / "recycle"

OF_RUNS = (
    "control",
    "runtime",
    "state",
    "megatron",
    "record/best_effort.py",
    "record/reporting.py",
    "view/history.py",
    "cli/join.py",
    "cli/train.py",
    "cli/run/shown_run.py",
    "faults/fired.py",
    "plan/plan.py",
    "threads.py",
)
"""What runs consist of, and what says in words how they go; the rest makes, reads and shows plans."""

OF_SETTINGS = (
    "/command_line.py",
    "/delayed_weights.py",
    "/etcd_cluster.py",
    "/exit_signal.py",
    "/flags.py",
    "/gpt/device.py",
    "/model_keys.py",
    "/on_cpu.py",
    "/megatron_options.py",
    "/redundancy.py",
    "/refusals.py",
    "/sizes.py",
    "cli/train.py",
    "/cpu_training.py",
    "/shared/cpu.py",
)
"""Files that judge settings before a run begins, in lines that name the setting, its value and the remedy; and the last
two, which list what stands in for CUDA."""

EXPLAINED = ("process <...> ended with ", "<...> failed: ", "<...> died: ", "<...>, iteration <...>, row ")
"""How lines begin that are explained whatever file they are in, and however few words they have."""

WORDS = 3
"""A text of fewer words is a part of others: a name, a unit, a key."""

PLACEHOLDER = "\0"
LATER = re.compile(r"%s|\{\w+(?:!\w)?\}|docs/[\w/.-]+\.md")
"""What is put in later than where a text stands, and where a page is."""


class Said(NamedTuple):
    """A text in the code.

    Attributes:
        file: below the package.
        text: with a placeholder for whatever is put in when it is said.
    """

    file: str
    text: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """What it looks like when it is said, alone or as a part of a line."""
        return re.compile(".*".join(map(re.escape, self.text.strip(PLACEHOLDER).split(PLACEHOLDER))))

    @property
    def is_sentence(self) -> bool:
        """Whether people can understand it by itself."""
        return len(re.findall(r"[^\W\d_]+", self.text)) >= WORDS and " " in self.text.strip()

    def __str__(self) -> str:
        return self.text.replace(PLACEHOLDER, "<...>")


def texts_of_runs() -> list[Said]:
    """The texts in the code of runs, but for docstrings, assertions, help and patterns."""
    paths = [each for name in OF_RUNS for each in sorted(_files(PACKAGE / name))]
    found = {Said(str(path.relative_to(PACKAGE)), _bare(text)) for path in paths for text in texts_of(path.read_text())}
    return sorted(found)


def messages_of_runs() -> list[Said]:
    """Of those, what is a sentence, and not about a setting."""
    return [each for each in texts_of_runs() if _is_message(each)]


def _is_message(said: Said) -> bool:
    return (said.is_sentence and not said.file.endswith(OF_SETTINGS)) or str(said).startswith(EXPLAINED)


def texts_of(source: str) -> Iterator[str]:
    """The texts in a file of Python."""
    tree = ast.parse(source)
    return _texts(tree)


def _files(path: Path) -> Iterator[Path]:
    yield from path.rglob("*.py") if path.is_dir() else [path]


def _bare(text: str) -> str:
    """The first line of a text, without what is written around it for the console."""
    return LATER.sub(PLACEHOLDER, text).strip("\n").partition("\n")[0].removeprefix("recycle: ")


def _texts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Assert(test=test):
            yield from _texts(test)
            return
        case ast.Raise(exc=ast.Call(func=ast.Name(id="AssertionError"))):
            return
        case ast.Call(func=function) if ast.unparse(function) in ("re.compile", "click.option", "group.add_argument"):
            return
        case ast.arg():
            return
        case ast.AnnAssign(value=value):
            if value is not None:
                yield from _texts(value)
            return
        case ast.Constant(value=str(text)):
            yield text
            return
        case ast.JoinedStr(values=values):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else PLACEHOLDER for each in values)
            for each in values:
                if isinstance(each, ast.FormattedValue):
                    yield from _texts(each.value)
            return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)
