"""Checkpoints from memory: keepers write versions that are due to disk, while training goes on."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, NamedTuple

from recycle.control.membership.errors import StoreLost
from recycle.errors import UserError
from recycle.runtime.checkpoint_folders import Manifest, checkpoints, folder_of
from recycle.runtime.keep.fetching import ask_all
from recycle.runtime.step.checkpoint import attempt_folder, complete
from recycle.state.channel import Address, Write
from recycle.state.client import KeeperClient
from recycle.state.errors import KeeperLost
from recycle.state.ladder import BEHIND, Copy, StatePart, find_whole
from recycle.threads import start_thread

LOOK = 0.1
"""Seconds between two looks at how far keepers are."""

ATTEMPT = "attempt-"
"""What the folders begin with that keepers write to; what is whole gets another name."""

BOTH = 2
"""Checkpoints that are kept at least: when servers fail while one gets its name, some report the one before, to which
all may have to go back then."""

Tell = Callable[[Literal["warning", "memory"], str], None]


class WritingKeeper(NamedTuple):
    """A keeper that can write.

    Attributes:
        client: by which it is asked to.
        keepers: all of the run, by the names that they have on its host, and how it reaches them.
        near: the name that it has there itself.
    """

    client: KeeperClient
    keepers: tuple[tuple[str, Address], ...]
    near: str


class Target(NamedTuple):
    """What is written, and where.

    Attributes:
        root: where checkpoints are.
        depth: P.
        pieces: how many each part of a version is made into.
        keep: how many checkpoints are kept; two, where that is one.
        shard: gives the folder of one rank's part of a stage in a checkpoint.
        manifest: gives that of a step's checkpoint.
        ranks: of each server.
    """

    root: Path
    depth: int
    pieces: int
    keep: int
    shard: Callable[[int, int], str]
    manifest: Callable[[int], Manifest]
    ranks: int = 1


class _GivenUp(Exception):
    """A version will not be on disk."""


class CheckpointsFromMemory:
    """One server's part in it: whoever leads a view has keepers write, and waits for them on a thread of its own.

    Where a keeper is lost while it writes a stage, or cannot write, another one does. A server that comes to lead
    takes up what was due last and is not on disk.

    Args:
        target: what is written, and where.
        find_keepers: gives the keepers of the run; raises StoreLost where nobody can say.
        tell: tells the user something.

    Attributes:
        failed: whether what was due last could not be written.
    """

    def __init__(self, target: Target, find_keepers: Callable[[], Sequence[WritingKeeper]], tell: Tell) -> None:
        self._target = target
        self._find_keepers = find_keepers
        self._tell = tell
        self.failed = False
        self._leads = False
        self._begun = 0
        self._left_out = 0
        self._newest = 0
        self._thread: threading.Thread | None = None
        self._said: SimpleQueue[tuple[Literal["warning", "memory"], str]] = SimpleQueue()
        self._stopped = threading.Event()
        self._ending = threading.Event()

    def look(self, step: int, due: int, *, leads: bool) -> None:
        """Between two iterations: see whether there is something to write.

        Args:
            step: the version that is there now.
            due: the newest one so far that is to be on disk.
            leads: whether this server leads the present view.
        """
        self._newest = step
        self._tell_what_was_said()
        takes_over, self._leads = leads and not self._leads, leads
        if not leads:
            self._stopped.set()
            return
        writes = self._thread is not None and self._thread.is_alive()
        if not writes:
            # Where training has gone back behind what was begun, that may have been set aside.
            self._begun = min(self._begun, due)
        if due <= self._begun and not takes_over:
            return
        if writes and not takes_over:
            if self._left_out < due:
                text = f"that of step {self._begun} is still being written"
                self._tell("warning", f"there is no checkpoint of step {due}: {text}")
            self._left_out = due
            return
        if due <= self._left_out and step > due:
            return  # keepers need not have it any more
        self._begun, self._stopped = due, threading.Event()
        if due:
            self._thread = start_thread(partial(self._save, due, self._stopped), f"saves {due}")

    def finish(self) -> None:
        """Wait until nothing is being written any more; no version comes after the present one."""
        if self._thread is not None:
            self._ending.set()
            self._thread.join()
            self._ending.clear()
        self._tell_what_was_said()

    def _say(self, kind: Literal["warning", "memory"], text: str) -> None:
        """For the user, from the other thread."""
        self._said.put((kind, text))

    def _tell_what_was_said(self) -> None:
        while not self._said.empty():
            self._tell(*self._said.get())

    def _save(self, step: int, stopped: threading.Event) -> None:
        """Have a version on disk."""
        keepers: Sequence[WritingKeeper] = ()
        try:
            keepers = self._find_keepers()
            _release(keepers, step - 1)
            if step > _newest(self._target.root):
                self._write(step, keepers, stopped)
            self.failed = False
        except (_GivenUp, StoreLost, UserError, OSError) as error:
            if not stopped.is_set():
                self.failed = True
                self._say("warning", f"the checkpoint of step {step} is not written from memory: {error}")
        if not stopped.is_set():
            _release(keepers, step)

    def _write(self, step: int, keepers: Sequence[WritingKeeper], stopped: threading.Event) -> None:
        """Have all stages written, and make a checkpoint of them."""
        target = self._target
        partial = attempt_folder(target.root, step)
        try:
            left = self._share_out(step, partial, keepers, self._await_parts(step, keepers, stopped))
            writers: set[str] = set()
            while left:
                for (stage, rank), asked in [*left.items()]:
                    writer = self._ask(asked)
                    if writer:
                        writers.add(writer)
                        final = partial / target.shard(stage, rank)
                        final.parent.mkdir(parents=True, exist_ok=True)
                        Path(asked[0][1].folder).rename(final)
                        del left[stage, rank]
                _wait(stopped)
            for each in partial.glob(f"{ATTEMPT}*"):
                shutil.rmtree(each, ignore_errors=True)  # of a keeper that was given up
            # Who cannot reach the store may be on the wrong side of a cut, where nobody writes.
            self._find_keepers()
            if not stopped.is_set() and not folder_of(target.root, step).exists():
                complete(target.root, target.manifest(step), partial, max(target.keep, BOTH))
                by = " and ".join(sorted(writers))
                self._say("memory", f"the checkpoint of step {step} is written from memory by {by}")
        finally:
            # What is whole has another name by now.
            shutil.rmtree(partial, ignore_errors=True)

    def _await_parts(
        self, step: int, keepers: Sequence[WritingKeeper], stopped: threading.Event
    ) -> Mapping[tuple[int, int], Mapping[str, int]]:
        """Of each stage and rank, how many bytes of the version each keeper has."""
        while True:
            hopeless = self._newest > step + BEHIND or self._ending.is_set()
            answers = ask_all([each.client for each in keepers])
            copies = [copy for answer in answers if not isinstance(answer, KeeperLost) for copy in answer]
            whole = find_whole(copies)
            found = {stage: whole.get(stage, {}).get(step, ()) for stage in range(self._target.depth)}
            if all(found.values()):
                return {
                    (stage, rank): _bytes_at(copies, [each for each in parts if each.rank == rank])
                    for stage, parts in found.items()
                    for rank in range(self._target.ranks)
                }
            if hopeless:
                raise _GivenUp("keepers do not have it as a whole")
            _wait(stopped)

    def _share_out(
        self,
        step: int,
        partial: Path,
        keepers: Sequence[WritingKeeper],
        found: Mapping[tuple[int, int], Mapping[str, int]],
    ) -> dict[tuple[int, int], list[tuple[WritingKeeper, Write]]]:
        """Of each stage and rank, whom to ask to write it, in turn: first who has most of it and least to do."""
        shards: dict[tuple[int, int], list[tuple[WritingKeeper, Write]]] = {}
        busy: Counter[str] = Counter()
        for (stage, rank), held in found.items():
            order = sorted(keepers, key=lambda each: (busy[each.client.name], -held.get(each.client.name, 0)))
            busy[order[0].client.name] += 1
            shards[stage, rank] = []
            for place, keeper in enumerate(order):
                folder = partial / f"{ATTEMPT}{stage}-{rank}-{place}"
                # Servers of the project's own trainer name their tensors by the chunk that they hold.
                write = Write(
                    stage, rank, step, str(folder), f"{stage}.", self._target.pieces, keeper.keepers, keeper.near
                )
                shards[stage, rank].append((keeper, write))
        return shards

    def _ask(self, asked: list[tuple[WritingKeeper, Write]]) -> str:
        """Ask for a stage; gives who has written it, and nothing if nobody has so far."""
        keeper, request = asked[0]
        name = keeper.client.name
        try:
            warnings = keeper.client.write(request)
        except KeeperLost as error:
            if len(asked) == 1:
                raise _GivenUp(f"{name}: {error}") from error
            self._say("warning", f"{name} does not write stage {request.stage}: {error}; another keeper does")
            del asked[0]
            return ""
        if warnings is None:
            return ""
        for each in warnings:
            self._say("warning", f"{name}: {each}")
        return name


def _wait(stopped: threading.Event) -> None:
    if stopped.wait(LOOK):
        raise _GivenUp("another server leads")


def _release(keepers: Sequence[WritingKeeper], step: int) -> None:
    """Tell keepers that versions up to one need not be written any more."""
    for keeper in keepers:
        with suppress(KeeperLost):
            keeper.client.release(step)


def _bytes_at(copies: Sequence[Copy], parts: Sequence[StatePart]) -> Counter[str]:
    """How many bytes of some parts each keeper has."""
    held: Counter[str] = Counter()
    for each in copies:
        if each.part.whole in parts:
            held[each.keeper] += each.size
    return held


def _newest(root: Path) -> int:
    """The newest step of which there is a checkpoint; 0 if there is none."""
    found = checkpoints(root)
    return int(found[-1].name.rpartition("-")[2]) if found else 0
