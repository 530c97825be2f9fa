"""Runs that tests compare with: each is made once in a session of pytest, for all modules and workers."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec
from filelock import FileLock

Left = TypeVar("Left")


class SharedRuns:
    """Those of a session. The worker that needs one first makes it, and the others that need it wait for that.

    Args:
        folder: of the session, the same in all workers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, settings: object, make: Callable[[Path], Left], kind: type[Left]) -> "SharedRun[Left]":
        """A run of these settings.

        Args:
            settings: all that the run depends on, by what ``repr`` says of it.
            make: makes it in a folder that is its own and empty, and gives what it left.
            kind: of what it left, as msgspec reads and writes it.
        """
        key = repr(settings)
        assert " at 0x" not in key, f"another process says this in other words: {key}"
        place = self._folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        place.mkdir(parents=True, exist_ok=True)
        left, folder = place / "left.msgpack", place / "run"
        with FileLock(place / "lock"):
            if not left.exists():
                # What has failed to make it may have left something.
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                (place / "settings.txt").write_text(key)
                content = msgspec.msgpack.encode(make(folder))
                left.write_bytes(content)
        return SharedRun(msgspec.msgpack.decode(left.read_bytes(), type=kind), folder)


class SharedRun(NamedTuple, Generic[Left]):
    """A run that has been made.

    Attributes:
        left: what it left.
        folder: that it worked in; no test changes it.
    """

    left: Left
    folder: Path
