"""What of a command line has to be the same in all ranks of a run, and in the next start from the state in memory."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from socket import gethostname

import msgspec

from recycle.errors import UserError
from recycle.files import from_json, read_bytes, write_whole
from recycle.megatron.flag.command.flags import CATALOGUE, DEAD, KEEP, RESUME
from recycle.plan.catalogue import Catalogue
from recycle.runtime.errors import RunError
from recycle.runtime.launch.meet.rendezvous import NotAdmitted, Rendezvous

SETTINGS = "settings.json"
"""The file, in the folder that the next start looks into."""

RANKS = "WORLD_SIZE"
"""What the number of ranks is called, which no option of the script says."""

MAY_CHANGE = (
    *("--train-iters", "--train-samples", "--save", "--load", "--log-", "--eval-", "--exit-", "--timing-"),
    *("--tensorboard-", "--wandb-", "--recycle-"),
)
"""How the options begin that say nothing about a version of the state, nor about what is trained."""
MAY_DIFFER = ("--recycle-", "--tensorboard-dir", "--wandb-", "--local-rank", "--local_rank")
"""The same among the ranks of one run, which all have to train, evaluate, print and save at the same iterations."""
AT_START = ("--load", "--ckpt-step", RESUME, DEAD)
"""What a rank that comes back does not heed: it gets the state from a live peer, in the view of the others."""
MUST_NOT = (KEEP, "--recycle-exact", "--recycle-stagger")
"""Those among all of them that do."""

Settings = Mapping[str, Sequence[str]]


def settings_of(
    words: Sequence[str], may_change: tuple[str, ...] = MAY_CHANGE, must_not: tuple[str, ...] = MUST_NOT
) -> dict[str, list[str]]:
    """The options of a command line that must not change, with their values.

    Args:
        words: after the script's name.
        may_change: how the options begin that may.
        must_not: those among them that must not.
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
    return {name: given for name, given in found.items() if name in must_not or not name.startswith(may_change)}


def require_same(folder: Path, words: Sequence[str], ranks: int) -> None:
    """Refuse to go on from what a start with other settings has left.

    Args:
        folder: into which that start wrote its own.
        words: of this start.
        ranks: how many it has.

    Raises:
        RunError: an option differs, or the number of ranks. Nothing is refused where the file is missing or cannot be
            read.
    """
    before: Settings = {}
    with suppress(UserError, msgspec.DecodeError):
        before = from_json(read_bytes(folder / SETTINGS), dict[str, list[str]])
    if before and (texts := _difference(before, _settings_of_state(words, ranks))):
        was, now = texts
        raise RunError(
            f"{RESUME}: the state in memory is of a start {was}, and this one is {now}: give the same, or leave "
            f"{RESUME} out"
        )


def require_same_in_run(meeting: Rendezvous, words: Sequence[str], catalogue: Catalogue | None) -> None:
    """Compare the options of a rank with those of the first one, at the start and when the rank comes back.

    Args:
        meeting: of the run's processes.
        words: of this rank's command line, after the script's name.
        catalogue: that they name, whose content is compared; None if there is none.

    Raises:
        RunError: an option differs. At the start, all are told; a run that goes on is not.
    """
    mine, start = settings_of(words, MAY_DIFFER, (*MUST_NOT, *AT_START)), meeting.start
    mine |= {} if catalogue is None else {CATALOGUE: [f"of checksum {catalogue.checksum}"]}
    told = from_json(meeting.agree("settings", msgspec.json.encode(mine)), dict[str, list[str]])
    returns = meeting.is_over()
    texts = _difference(told, mine, AT_START if returns else ())
    if not texts:
        return
    theirs, own = texts
    if returns:
        raise NotAdmitted(
            f"process {start.rank}, on {gethostname()}, comes back {own}, and the run was started {theirs}: it goes on "
            "without this process; start the process again with the options of the run"
        )
    raise RunError(
        f"this process was started {own}, and process 0, on {start.host}, {theirs}: start all with the same options"
    )


def write_settings(folder: Path, words: Sequence[str], ranks: int) -> None:
    """Say with which settings a start keeps its state.

    Args:
        folder: into which it writes them.
        words: of this start.
        ranks: how many it has.

    Raises:
        UserError: the file cannot be written.
    """
    write_whole(
        folder / SETTINGS, msgspec.json.format(msgspec.json.encode(_settings_of_state(words, ranks))), private=True
    )


def _settings_of_state(words: Sequence[str], ranks: int) -> dict[str, list[str]]:
    """What must not change. Another number of ranks cuts the state into other shards."""
    return settings_of(words) | {RANKS: [str(ranks)]}


def _difference(theirs: Settings, own: Settings, unheeded: tuple[str, ...] = ()) -> tuple[str, str] | None:
    """Both sides of the first option that differs, for the user; None if none does."""
    for name in sorted({*theirs, *own} - {*unheeded}):
        one, other = theirs.get(name), own.get(name)
        if one != other and (one is None or other is None or [*map(_parsed, one)] != [*map(_parsed, other)]):
            return _text(name, theirs), _text(name, own)
    return None


def _parsed(value: str) -> float | str:
    """A number, where it is one: it may be written in several ways."""
    for parse in (int, float):
        with suppress(ValueError):
            return parse(value)
    return value


def _text(name: str, settings: Settings) -> str:
    values = settings.get(name)
    return f"without {name}" if values is None else f"with {' '.join([name, *values])}"
