"""What of a command line has to be as it was for training to go on from the state in memory."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from recycle.errors import UserError
from recycle.files import from_json, read_bytes, write_whole
from recycle.megatron.flag.command.flags import KEEP, RESUME
from recycle.runtime.errors import RunError

SETTINGS = "settings.json"
"""The file, in the folder that the next start looks into."""

MAY_CHANGE = (
    *("--train-iters", "--train-samples", "--save", "--load", "--log-", "--eval-", "--exit-", "--timing-"),
    *("--tensorboard-", "--wandb-", "--recycle-"),
)
"""How the options begin that say nothing about a version of the state, nor about what is trained."""
MUST_NOT = (KEEP, "--recycle-exact", "--recycle-stagger")
"""Those among them that do."""

Settings = Mapping[str, Sequence[str]]


def settings_of(words: Sequence[str]) -> dict[str, list[str]]:
    """The options of a command line that must not change, with their values.

    Args:
        words: after the script's name.
    """
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = [value] if equals else []
            # Of an option that is given twice, the last one holds.
            found[name] = values
        else:
            values.append(word)
    return {name: given for name, given in found.items() if name in MUST_NOT or not name.startswith(MAY_CHANGE)}


def require_same(folder: Path, words: Sequence[str]) -> None:
    """Refuse to go on from what a start with other settings has left.

    Args:
        folder: into which that start wrote its own.
        words: of this start.

    Raises:
        RunError: an option differs. Nothing is refused where the file is missing or cannot be read.
    """
    before: Settings = {}
    with suppress(UserError, msgspec.DecodeError):
        before = from_json(read_bytes(folder / SETTINGS), dict[str, list[str]])
    now: Settings = settings_of(words)
    if not before:
        return
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise RunError(
                f"{RESUME}: the state in memory is of a start {_text(name, before)}, and this one is "
                f"{_text(name, now)}: give the same, or leave {RESUME} out"
            )


def write_settings(folder: Path, words: Sequence[str]) -> None:
    """Say with which settings a start keeps its state.

    Raises:
        UserError: the file cannot be written.
    """
    write_whole(folder / SETTINGS, msgspec.json.format(msgspec.json.encode(settings_of(words))), private=True)


def _text(name: str, settings: Settings) -> str:
    values = settings.get(name)
    return f"without {name}" if values is None else f"with {' '.join([name, *values])}"
