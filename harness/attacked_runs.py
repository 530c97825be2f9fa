"""Small runs of ``recycle train`` that other users attack, on this machine and on hosts of namespaces."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType

from harness.doors import STORE, everybody
from harness.floods import FLOODS, hear, hold
from harness.hosts import Host
from harness.processes import PROCESSES, title
from harness.sockets import Listening, listening
from harness.started import Started, by_hand
from harness.strangers import as_stranger, readable
from recycle.control.board.joinfile import JoinFile

PATIENCE = 300.0
MODEL = "layers = 2\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\nexact = true\n"
SIZE = ("--pipelines", "2", "--stages", "2", "--micro-batches", "4")

STORE_PORT, NONCE, PATIENT = 29500, 16, 8.0
"""Where the store of a run on hosts is; bytes that a door says without a proof; seconds in which it hangs up."""

AT_STORE: Mapping[str, Sequence[str]] = {
    "strikes": ("harness.scripts.vandal", "host1", str(STORE_PORT), "1"),
    "frozen": ("harness.scripts.freezer", "host1", str(STORE_PORT)),
}
BEGINS, GOES_ON = 5, 30
"""Iterations before which a run on hosts waits until the attack has begun, and until it has gone on for a while."""


def begin(
    folder: Path,
    *more: str,
    limits: Sequence[str] = (),
    host: Host | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Started:
    """A run, or its part on a host, that waits before an iteration while a file called after it is in the folder."""
    (folder / "model.toml").write_text(MODEL)
    files = ["--model", str(folder / "model.toml"), "-o", str(folder / "run")]
    words = [*limits, sys.executable, "-m", "harness.scripts.held_train", "train", *SIZE, *files, *more]
    return Started(words, host, {"HELD": str(folder), **variables})


@contextmanager
def flooded(flood: str, doors: Sequence[Listening], connections: int, on: Host | None = None) -> Iterator[None]:
    """Within the block, other users of a host flood some doors; each one that says nothing does so at one of them."""
    with ExitStack() as strangers:
        if flood != "idle":
            strangers.enter_context(as_stranger(partial(FLOODS[flood], doors), on))
        else:
            for each in doors:
                strangers.enter_context(as_stranger(partial(hold, [each], connections), on))
        yield


class OnHosts:
    """A run on two hosts.

    Args:
        folder: of the run.
        places: the hosts, and one more for strangers.
        iterations: of it.
        ends: what is ended with it.
    """

    def __init__(self, folder: Path, places: Sequence[Host], iterations: int, ends: ExitStack) -> None:
        folder.chmod(0o755)
        self.folder = folder
        self.places = places
        for step in (BEGINS, GOES_ON):
            (folder / str(step)).touch()
        words = ("--iterations", str(iterations), "--restarts", "0", "--keep-in-memory", "copies=1")
        self.ranks = []
        for rank, host in enumerate((places[0], places[0], places[1], places[1])):
            self.ranks.append(begin(folder, *words, host=host, variables=by_hand(rank, 4, "host1", STORE_PORT)))
            ends.callback(self.ranks[-1].kill)
        self.ranks[0].wait_for(f"iteration {BEGINS}/", PATIENCE)

    @property
    def output(self) -> str:
        """What all have printed."""
        return "".join(each.output for each in self.ranks)

    def doors(self) -> list[tuple[Host, list[Listening]]]:
        """Where strangers are, and what they reach there: other users of a host all, and others its addresses."""
        token = JoinFile.read(self.folder / "run" / "join.json").token
        everything = listening({each for rank in self.ranks for each in everybody(rank.process.pid, token)})
        own = [(host, [each for each in everything if _network(each) == _network_of(host)]) for host in self.places[:2]]
        addresses = {each.address for each in self.places[:2]}
        reached = [each for each in everything if isinstance(each.address, tuple) and each.address[0] in addresses]
        return [*own, (self.places[2], reached)]

    def go_on(self, step: int) -> None:
        """Have it wait no longer before an iteration."""
        (self.folder / str(step)).unlink()


def _network_of(host: Host) -> str:
    return str((PROCESSES / str(host.first) / "ns" / "net").readlink())


def _network(door: Listening) -> str:
    return str((PROCESSES / str(min(door.holders)) / "ns" / "net").readlink())


def read_all(doors: Sequence[Listening], folder: Path) -> None:
    """Try to read what doors of the run say, and its files.

    Raises:
        AssertionError: something can be read.
    """
    # A process that has started no keeper keeps a socket for one, where no connection is accepted.
    for door, heard in hear(doors, PATIENT).items():
        assert len(heard) <= NONCE, f"{door} says {heard!r}"
    assert not [*readable(folder)], "files can be read"


def _is_ours(door: Listening) -> bool:
    """Whether a door is not torch's, which takes what comes for a rank or a client."""
    return not any(title(each).startswith("recycle: W") or title(each) == STORE for each in door.holders)


@contextmanager
def attacked(run: OnHosts, attack: str, connections: int) -> Iterator[None]:
    """Within the block, an attack goes on."""
    with ExitStack() as strangers:
        doors = run.doors()
        if attack in AT_STORE:
            vandal = Started([sys.executable, "-m", *AT_STORE[attack]], run.places[2])
            strangers.callback(vandal.kill)
            vandal.wait_for({"strikes": "400 strikes", "frozen": "2 hosts are frozen"}[attack], PATIENCE)
        for host, found in doors:
            if attack == "reads":
                strangers.enter_context(
                    as_stranger(partial(read_all, [*filter(_is_ours, found)], run.folder / "run"), host)
                )
            elif attack in FLOODS:
                strangers.enter_context(flooded(attack, found, connections, host))
        yield
