"""Runs of ``recycle train`` to which something hostile is done, and what can be seen of them from outside."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.paths import python_path
from harness.processes import environment, is_running, processes, seconds_waited, send_signal, title
from recycle.cli.losses import load_losses
from recycle.view.losses import compare_losses

MARK = "RECYCLE_HOSTILE_RUN"
"""A variable that all processes of a run inherit, and by which they are told from others."""

PIPELINES, STAGES, ITERATIONS = 2, 2, 100
MODEL = "layers = 2\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.001\n"
SERVERS = tuple(f"W{pipeline}_{stage}" for pipeline in range(PIPELINES) for stage in range(STAGES))
ITERATION = re.compile(r"^iteration (\d+)/\d+: loss ([\d.]+|nan|inf)")
UGLY = re.compile(
    r"Traceback|^\s+File \"|^\[\w+ ?[WEF]\d{3}|terminate called|Fatal Python|^Exception ignored|^\w+(Error|Warning):"
)
"""What a user is not to see: a traceback, or what torch, Python or C++ say by themselves."""

QUIET, STAYS = 10.0, 15.0
"""Seconds without a line that are too many, and after which nothing may be left of a run that has ended. Time for
which its first process waited for the processor does not count."""
PRINTED_DIGITS, ALLOWED = 1.5e-4, 1e-5
"""By how much losses may be apart: as they are printed, with four decimals, and relative where they were recorded."""


def words_of(folder: Path, *more: str, output: str = "run") -> list[str]:
    """The arguments of a run whose model and text are in a folder."""
    size = ["--pipelines", str(PIPELINES), "--stages", str(STAGES), "--micro-batches", "4"]
    files = ["--model", str(folder / "model.toml"), "--text", str(folder / "text"), "-o", str(folder / output)]
    return ["train", *size, "--iterations", str(ITERATIONS), "--checkpoint-every", "20", *files, *more]


def write_inputs(folder: Path) -> None:
    """Write the model and the text: words that follow from each other, so that something can be learned."""
    (folder / "model.toml").write_text(MODEL)
    (folder / "text").write_text(
        " ".join(f"{number} and {number * number} make {number**3};" for number in range(9000))
    )


class Run:
    """A run, and its lines with the time of each.

    Args:
        words: arguments of ``recycle``.
        limits: of prlimit, for all of its processes.
        variables: for its environment.

    Attributes:
        lines: what it has printed, with the monotonic time of each line in seconds.
        shown: the loss of each iteration that it has printed.
    """

    def __init__(
        self, words: Sequence[str], limits: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        self.lines: list[tuple[float, str]] = []
        self.shown: dict[int, float] = {}
        self._mark = uuid.uuid4().hex
        self._excused: list[tuple[float, float]] = []
        self._waits: list[float] = []
        changes = {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": python_path(),
            "TORCH_CPP_LOG_LEVEL": "FATAL",
            MARK: self._mark,
        }
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            [*(["prlimit", *limits, "--"] if limits else []), sys.executable, "-m", "harness.scripts.train", *words],
            env={**os.environ, **changes, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._ended = self._waited = 0.0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        """All that it has printed."""
        return "\n".join(text for _, text in self.lines)

    @property
    def iteration(self) -> int:
        """The last one that it has shown."""
        return max(self.shown, default=0)

    @property
    def is_over(self) -> bool:
        """Whether its first process has ended."""
        self._waited = seconds_waited(self.process.pid) or self._waited
        over = self.process.poll() is not None
        if over and not self._ended:
            self._ended = time.monotonic()
        return over

    def reach(self, iteration: int, seconds: float = 120.0) -> bool:
        """Wait until it has shown an iteration; gives whether it has, and has not ended."""
        deadline = time.monotonic() + seconds
        while self.iteration < iteration and not self.is_over and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.iteration >= iteration and not self.is_over

    def end(self, seconds: float) -> int | None:
        """Its exit status, or None where it has not ended within so many seconds."""
        deadline = time.monotonic() + seconds
        while not self.is_over and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.is_over:
            self._reader.join(5)
        return self.process.poll()

    def called(self, pattern: str) -> list[int]:
        """Its processes whose title matches."""
        return [pid for pid in self._alive() if re.search(pattern, title(pid))]

    def send(self, pattern: str, number: int) -> None:
        """Send a signal to its processes whose title matches."""
        for pid in self.called(pattern):
            send_signal(pid, number)

    def excuse(self, since: float) -> None:
        """From then until now it could say nothing, because it was stopped."""
        self._excused.append((since, time.monotonic()))

    def close_output(self) -> None:
        """Close the reading end of its output, so that its writes fail."""
        assert self.process.stdout is not None
        fd = os.open(os.devnull, os.O_RDONLY)
        os.dup2(fd, self.process.stdout.fileno())
        os.close(fd)

    def silences(self) -> list[str]:
        """The stretches without a line that were too long."""
        ended = self._ended or time.monotonic()
        said = [(self._began, 0.0, "its start")]
        said += [(when, wait, text) for (when, text), wait in zip(self.lines, self._waits, strict=False)]
        found = []
        for (before, waited, text), (after, waits, _) in itertools.pairwise([*said, (ended, self._waited, "")]):
            excused = sum(max(0.0, min(until, after) - max(since, before)) for since, until in self._excused)
            quiet = after - before - excused - (waits - waited)
            if quiet > QUIET:
                found.append(f"silent for {quiet:.1f} s after {text[:70]!r}")
        return found

    def left(self, may: str = "") -> list[str]:
        """What is still there so many seconds after its end.

        Args:
            may: the start of the titles of processes that may be.
        """
        deadline = time.monotonic() + STAYS
        while left := sorted(name for name in map(title, self._alive()) if not may or not name.startswith(may)):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return left

    def clear(self) -> None:
        """End what is left of it."""
        for pid in self._alive():
            send_signal(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def _alive(self) -> list[int]:
        return [pid for pid in processes() if environment(pid).get(MARK) == self._mark and is_running(pid)]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            text = raw.decode(errors="replace").rstrip("\n")
            self._waited = seconds_waited(self.process.pid) or self._waited
            self._waits.append(self._waited)
            self.lines.append((time.monotonic(), text))
            if found := ITERATION.match(text):
                self.shown[int(found[1])] = float(found[2])


def recorded(folder: Path) -> dict[float, float]:
    """The losses of a run by iteration, from its recordings; none where they are gone."""
    try:
        return dict(load_losses(folder).curve)
    except (ValueError, OSError):
        return {}


def loss_problems(shown: Mapping[int, float], folder: Path, expected: Mapping[float, float]) -> list[str]:
    """How losses differ from those of an undisturbed run."""
    found = []
    apart = [step for step, loss in shown.items() if not abs(loss - expected[step]) <= PRINTED_DIGITS]
    if apart:
        found.append(
            f"{len(apart)} printed losses differ, first {apart[0]}: {shown[apart[0]]} for {expected[apart[0]]}"
        )
    if curve := recorded(folder):
        difference = compare_losses(list(curve.items()), list(expected.items()))
        if difference is not None and not difference.largest <= ALLOWED:
            found.append(f"recorded losses differ by {difference.largest:.2g} at iteration {difference.step:g}")
    return found


def remove(path: Path) -> None:
    """Remove a file or a folder, though others write into it meanwhile."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
