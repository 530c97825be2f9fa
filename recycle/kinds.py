"""What a file is, whatever it is called: for the mistake of giving one kind where another is wanted."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from recycle.errors import UserError

PLAN, CATALOGUE, RECORDING = "a plan", "a catalogue", "a recording"
JOB, FAULTS, MODEL = "a job file", "a fault file", "a model file"

_SOURCES = {
    PLAN: "recycle plan makes one from a job file, and recycle plan --catalogue takes one from a catalogue",
    CATALOGUE: "recycle catalogue makes one from a job file",
    JOB: "docs/reference/job-file.md has its keys",
    FAULTS: "docs/reference/faults.md has its fields",
    MODEL: "docs/reference/train.md has its keys",
    RECORDING: "recycle train writes them into the folder of its run, a Megatron job into that of --recycle-record",
}
_FORMATS = {b"recycle plan": PLAN, b"recycle run": RECORDING}
_FORMAT = re.compile(rb'"format"\s*:\s*"([^"]{1,40})"')
_BEGINNING = 300  # bytes in which a file of ours says its format
_KEYS = {"pipelines": JOB, "fault": FAULTS}
_DEEP = re.compile(rb"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){100}""")
"""A key of so many parts: what reads it takes time and memory by the square of them."""

_LONGEST = 1024  # bits of a number, as a float can have
TOO_LONG = "a number in it has more than 300 digits; write a smaller one"


def kind_of(content: bytes) -> str | None:
    """What a file of this content is, in words; None where it does not show."""
    try:
        return _kind_of_beginning(content) or _kind_of_keys(_parse(content))
    except UserError:
        return None


def _kind_of_beginning(content: bytes) -> str | None:
    if content.startswith(b"PK"):
        return CATALOGUE
    match = _FORMAT.search(content, 0, _BEGINNING)
    return None if match is None else _FORMATS.get(match[1])


def _kind_of_keys(keys: dict[str, Any]) -> str | None:
    return next((kind for key, kind in _KEYS.items() if key in keys), None)


def _parse(content: bytes) -> dict[str, Any]:
    if deep := _DEEP.search(content):
        line = content[: deep.start()].count(b"\n") + 1
        raise UserError(f"this is no TOML file: a key in line {line} has more than 100 parts")
    try:
        keys = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        is_ours = isinstance(error, tomllib.TOMLDecodeError | UnicodeDecodeError | RecursionError)
        # The others are of a number of thousands of digits, and name a function of Python's as the remedy.
        raise UserError(f"this is no TOML file: {error if is_ours else TOO_LONG}") from error
    if any(isinstance(each, int) and each.bit_length() > _LONGEST for each in _values(keys)):
        raise UserError(f"this cannot be used: {TOO_LONG}")
    return keys


def _values(value: Any) -> Iterator[Any]:
    """All that is no table and no list, however deep."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _values(each)
    else:
        yield value


def mistaken(content: bytes, wanted: str) -> str | None:
    """What is to be said of a file that is of another kind than is wanted; None if it is not, or not known to be.

    Args:
        content: the file's.
        wanted: one of this module's kinds.
    """
    return _mistaken(kind_of(content), wanted)


def _mistaken(kind: str | None, wanted: str) -> str | None:
    return None if kind in (None, wanted) else f"this is {kind}, and {wanted} is needed: {_SOURCES[wanted]}"


def read_toml(content: bytes, wanted: str) -> dict[str, Any]:
    """The keys of a TOML file that is to be of a kind.

    Args:
        content: the file's.
        wanted: one of this module's kinds.

    Raises:
        UserError: it is of another kind, or no TOML.
    """
    mistake = _mistaken(_kind_of_beginning(content), wanted)
    keys = _parse(content) if mistake is None else {}
    mistake = mistake or _mistaken(_kind_of_keys(keys), wanted)
    if mistake is not None:
        raise UserError(mistake)
    return keys
