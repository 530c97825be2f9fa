"""Kills from outside, each in the middle of something that a Megatron job is seen to do by its lines and its files."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.processes import family, send_signal

TRACKER = "latest_checkpointed_iteration.txt"
LINE = re.compile(r" iteration +(\d+)/ *\d+ \|")
EVALUATION = re.compile(r"validation loss at iteration (\d+) ")
DEATH = re.compile(
    r"recycle: (W\d+_\d+) (?:has lost rank \d+, which )?was killed by signal 9 \(SIGKILL\); training goes on"
)
PATIENCE = 600.0
"""Seconds after which jobs have hung."""

RETURN = re.compile(r"training goes on with \d+ servers, (\S+(?:, \S+)*) among them again")
GUESS = 0.2
"""How long something takes that was not seen yet, in seconds."""


class Hit(NamedTuple):
    """A kill.

    Attributes:
        kind: in the middle of what.
        rank: whose process was killed.
        server: that died with it.
        seen: what could be seen when it was killed.
        seconds: until a line said that training goes on; None if none did.
    """

    kind: str
    rank: int
    server: str
    seen: str
    seconds: float | None = None


class OutsideKiller:
    """Kills ranks of a job in turn; each next one when a line has said that training goes on without the one before.

    Every stage keeps a live server; who has come back is killed again. The first and the last rank are killed more
    often than the others, because they print and write.

    Args:
        kinds: in the middle of what ranks are killed: ``save``, ``evaluation``, ``logging`` or ``any``.
        servers: the ranks of each server.
        find: the process of a rank.
        saved: the folder of checkpoints.
        every: iterations from one evaluation to the next.
        source: of victims and moments.

    Attributes:
        hits: what was killed.
        returns: how many servers have come back.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        servers: Mapping[str, Sequence[int]],
        find: Callable[[int], int],
        saved: Path,
        every: int,
        source: random.Random,
    ) -> None:
        self.hits: list[Hit] = []
        self.returns = 0
        self._left = list(kinds)
        self._servers = servers
        self._live = set(servers)
        self._find = find
        self._saved = saved
        self._every = every
        self._source = source
        self._lengths: dict[str, float] = {}
        self._line, self._line_at = 0, 0.0
        self._evaluated, self._timed = 0, 0
        self._save, self._save_at = 0, 0.0
        self._whole = 0
        self._due: float | None = None
        self._aim = 0
        self._killed_at: float | None = None

    def hear(self, line: str) -> None:
        """Take note of a line that the job has printed."""
        now = time.monotonic()
        if found := LINE.search(line):
            self._line, self._line_at = int(found[1]), now
        elif found := EVALUATION.search(line):
            if int(found[1]) == self._line:
                self._measure("evaluation", now - self._line_at)
            self._evaluated = int(found[1])
        elif "forward-backward" in line:
            self._timed = self._line
        elif (found := DEATH.search(line)) and self._killed_at is not None and found[1] == self.hits[-1].server:
            self.hits[-1] = self.hits[-1]._replace(seconds=now - self._killed_at)
            self._killed_at = None
        if found := RETURN.search(line):
            back = set(found[1].split(", "))
            self.returns += len(back)
            self._live |= back

    def look(self) -> None:
        """See how far the job is, and kill if this is the moment."""
        now = time.monotonic()
        self._look_at_files(now)
        if not self._left or self._killed_at is not None:
            return
        kind = self._left[0]
        number, began = self._begun(kind)
        if self._due is None:
            if number > self._aim:
                self._aim = number
                self._due = began + self._source.uniform(*self._delays(kind))
        elif self._is_over(kind):
            self._due = None
        elif now >= self._due and (victims := self._victims()):
            server = self._source.choice(victims)
            rank = self._source.choice(self._servers[server])
            send_signal(self._find(rank), signal.SIGKILL)
            self._killed_at, self._due, self._aim = now, None, 0
            del self._left[0]
            self._live.discard(server)
            self.hits.append(Hit(kind, rank, server, self._describe(kind)))

    def _victims(self) -> list[str]:
        """The live servers that have a live peer, the first one and the last one several times."""
        stages = Counter(server.partition("_")[2] for server in self._live)
        victims = sorted(server for server in self._live if stages[server.partition("_")[2]] > 1)
        *_, last = self._servers
        ends = (next(iter(self._servers)), last)
        return victims + [server for server in victims if server in ends]

    def _look_at_files(self, now: float) -> None:
        numbers = [int(each.name[5:]) for each in self._saved.glob("iter_*")]
        if numbers and max(numbers) > self._save:
            self._save, self._save_at = max(numbers), now
        if self._save > self._whole:
            try:
                whole = int((self._saved / TRACKER).read_text())
            except (OSError, ValueError):
                return  # not there yet, or half written
            if whole == self._save:
                self._whole = whole
                self._measure("save", now - self._save_at)

    def _measure(self, kind: str, seconds: float) -> None:
        # A death makes it longer.
        self._lengths[kind] = min(seconds, self._lengths.get(kind, seconds))

    def _begun(self, kind: str) -> tuple[int, float]:
        """The newest of its kind, and since when it goes on; 0 if there is none now."""
        if kind == "save":
            return (self._save if self._save > self._whole else 0), self._save_at
        if kind == "evaluation":
            return (self._line if self._line % self._every == 0 else 0), self._line_at
        return self._line, self._line_at

    def _delays(self, kind: str) -> tuple[float, float]:
        return {"logging": (0.0, 0.0), "any": (0.0, 0.5)}.get(kind, (0.0, 0.9 * self._lengths.get(kind, GUESS)))

    def _is_over(self, kind: str) -> bool:
        if kind == "save":
            return self._whole >= self._aim
        if kind == "evaluation":
            return self._evaluated >= self._aim or self._line > self._aim
        return kind == "logging" and (self._timed >= self._aim or self._line > self._aim)

    def _describe(self, kind: str) -> str:
        if kind == "save":
            files = sum(len(names) for _, _, names in os.walk(self._saved / f"iter_{self._save:07}"))
            return f"checkpoint {self._save} with {files} files, not whole"
        if kind == "evaluation":
            return f"after the line of iteration {self._line}, before its validation loss"
        if kind == "logging":
            return f"after the line of iteration {self._line}, before its timers"
        return f"{(time.monotonic() - self._line_at) * 1e3:.0f} ms after the line of iteration {self._line}"


class JobProcess:
    """Jobs that are forked one after the other from one process, and what they print.

    Args:
        jobs: how many ranks each has, and its words.
        folder: where they work.
    """

    def __init__(self, jobs: Sequence[tuple[int, list[str]]], folder: Path) -> None:
        from harness.flag_runs import VARIABLES
        from harness.paths import python_path

        (folder / "jobs.json").write_text(json.dumps(jobs))
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "harness.scripts.forked_jobs", str(folder / "jobs.json")],
            env=os.environ | VARIABLES | {"PYTHONPATH": python_path()},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def follow(self, killer: OutsideKiller | None) -> list[tuple[int, str]]:
        """Wait for the end of all; gives the status of each and what it has printed.

        Args:
            killer: of ranks of the first one.
        """
        reader = threading.Thread(target=self._read, args=[killer], daemon=True)
        reader.start()
        deadline = time.monotonic() + PATIENCE
        try:
            while reader.is_alive() and time.monotonic() < deadline:
                if killer is not None:
                    killer.look()
                time.sleep(0.001)
        finally:
            end_all(self.process.pid)
            self.process.wait()
        found, said = [], ""
        for line in list(self.lines):
            if line.startswith("forked job ended with status "):
                found.append((int(line.split()[-1]), said))
                said = ""
            else:
                said += line
        return found if not said else [*found, (-1, said)]

    def _read(self, killer: OutsideKiller | None) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if killer is not None:
                killer.hear(line)


def end_all(pid: int) -> None:
    """Kill a process and all that it has started."""
    for each in family(pid):
        send_signal(each, signal.SIGKILL)
