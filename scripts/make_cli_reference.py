"""Make docs/reference/cli.md: every verb of the command line with its options, as their help says it.

Usage: python scripts/make_cli_reference.py [FILE]
"""

import argparse
import posixpath
import re
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import click

from recycle.cli.options import GroupedOption
from recycle.cli.verbs import FIRST, MORE, group
from recycle.megatron.flag.command.flags import add_flags

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "cli.md"

HEAD = """\
# Command line

This page is made from the verbs' own help by `scripts/make_cli_reference.py`, and a test holds that it is up to date.
Every verb prints the same with `--help`.

Reports go to standard output; progress and errors go to standard error. `-` in the place of a file is standard input,
or standard output after `-o`. An option with a value is given once. Files are written whole or not at all. With
`NO_COLOR` in the environment there are no colours.

| exit status | meaning |
| --- | --- |
| 0 | done |
| 1 | a run failed, a plan is illegal, or plans differ; `doctor` refuses a setting; runs share no iteration |
| 2 | the input cannot be used: an option, a file, a model, a server that does not exist |
| 130, 143 | ended by Ctrl-C, or by SIGTERM |
| 141 | standard output is a pipe whose reader has ended, as behind `head` |

Ctrl-C ends `plan` with the best plan so far and status 0, for jobs of up to 20,000 tasks. A second one ends it at once.
`catalogue` goes on where it was when it is called again.

Shells complete verbs, options and choices. This line switches it on in `~/.bashrc`; zsh and fish have `zsh_source` and
`fish_source`:

```sh
eval "$(_RECYCLE_COMPLETE=bash_source recycle)"
```
"""

NAMED = re.compile(r"docs/[\w/-]+\.md")
EXTRA = re.compile(r"\s*\[([^\[\]]*)\]$")
"""What click writes behind the meaning of an option."""


class Wide(click.Context):
    """A context whose help wraps no line."""

    def make_formatter(self) -> click.HelpFormatter:  # noqa: D102 - click's contract
        return click.HelpFormatter(width=10_000, max_width=10_000)


def cell(text: str) -> str:
    """A text in a table's cell; readers of Markdown differ in what a bar behind a backslash is there."""
    return " ".join(text.split()).replace("|", "&#124;")


def code(text: str) -> str:
    """Code in a table's cell."""
    return f"<code>{cell(escape(text))}</code>" if "|" in text else f"`{cell(text)}`"


def row(names: str, default: str, meaning: str) -> str:
    """A row of a table of options."""
    return f"| {code(names)} | {cell(default)} | {cell(meaning)} |"


def rows(options: Sequence[click.Option], context: click.Context) -> Iterator[str]:
    """A table of options."""
    yield "| option | default | meaning |"
    yield "| --- | --- | --- |"
    for each in options:
        record = each.get_help_record(context)
        if record is not None and "--help" not in each.opts:
            names, meaning = record
            yield row(names, *told(meaning, each, context))


def told(meaning: str, option: click.Option, context: click.Context) -> tuple[str, str]:
    """The default of an option, and what it means, from what its help says with both."""
    default, limits = "", []
    while (found := EXTRA.search(meaning)) is not None:
        meaning = meaning[: found.start()]
        for part in found[1].split("; "):
            if part.startswith("default: "):
                default = part.removeprefix("default: ")
            elif not part.startswith("env var: "):
                limits.append(part)
    if not default and not option.required:
        value = option.get_default(context)
        default = "off" if option.is_flag else str(value) if isinstance(value, int | float) else ""
    return default, meaning + (f" ({'; '.join(limits)})" if limits else "")


def described(verb: click.Command) -> Iterator[str]:
    """What a verb does, and examples."""
    for paragraph in re.split(r"\n\s*\n", (verb.help or "").strip()):
        lines = [line.strip() for line in paragraph.splitlines()]
        if lines[0] == "\b":
            yield "\n".join(("```text", *lines[1:], "```"))
        else:
            yield NAMED.sub(linked, " ".join(lines))


def linked(page: re.Match[str]) -> str:
    """A link to a page that a help text names."""
    return f"[{Path(page[0]).stem}]({posixpath.relpath(page[0], PAGE.relative_to(ROOT).parent)})"


def section(name: str) -> Iterator[str]:
    """The part of a verb."""
    verb = group.get_command(click.Context(group), name)
    assert verb is not None
    context = Wide(verb, info_name=f"recycle {name}")
    yield f"## recycle {name}"
    yield f"```text\n{context.get_usage().removeprefix('Usage: ')}\n```"
    yield from described(verb)
    groups: dict[str, list[click.Option]] = {"": []}
    for each in verb.get_params(context):
        if isinstance(each, click.Option):
            groups.setdefault(each.heading if isinstance(each, GroupedOption) else "", []).append(each)
    for title, options in groups.items():
        if title:
            yield f"**{title}**"
        if any(each for each in options if "--help" not in each.opts):
            yield "\n".join(rows(options, context))


def flags() -> Iterator[str]:
    """The part of the flags that a Megatron script takes."""
    yield "## python -m recycle.megatron"
    yield (
        "Runs a Megatron script by a plan. Torchrun, srun, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT start it, "
        "a process for each rank:"
    )
    yield "```text\ntorchrun --nproc-per-node 8 -m recycle.megatron [--on-cpu] SCRIPT ARGUMENT...\n```"
    yield (
        "`--on-cpu` comes before the script. It sets what stock Megatron needs without CUDA, and says what it has set. "
        "The other flags stand among the script's arguments, which the script gets without them."
    )
    actions = add_flags(argparse.ArgumentParser(add_help=False))._actions  # noqa: SLF001 - argparse lists them nowhere else
    lines = ["| flag | default | meaning |", "| --- | --- | --- |"]
    for each in actions:
        value = "" if each.nargs == 0 else " " + (str(each.metavar) if each.metavar else "VALUE")
        if each.choices:
            value = f" {'|'.join(map(str, each.choices))}"
        default = "off" if each.nargs == 0 else "" if each.default in (None, ()) else str(each.default)
        lines.append(row(f"{each.option_strings[0]}{value}", default, each.help or ""))
    yield "\n".join(lines)


def make_page() -> str:
    """The whole page."""
    verbs = [part for name in (*FIRST, *MORE) for part in section(name)]
    return "\n\n".join([HEAD.rstrip(), *verbs, *flags()]) + "\n"


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    place.write_text(make_page())
    print(place)
