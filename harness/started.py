"""Runs of ``recycle train`` whose processes are started apart, on hosts or here: by torchrun, as by srun, by hand."""

import math
import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.forked import Forked
from harness.hosts import Host
from harness.paths import python_path
from harness.processes import family, title
from recycle.record.recording import IterationLine, Line, ViewLine

Found = TypeVar("Found")
TRAIN = (sys.executable, "-m", "harness.scripts.train")


def small_run(
    output: Path, pipelines: int, stages: int, iterations: int, *more: str, keys: str = "exact = true\n"
) -> list[str]:
    """What ``recycle`` is given to train a small model on two micro-batches a pipeline.

    Args:
        output: the folder of the run, beside which its model file is written.
        pipelines: of the job.
        stages: of the job, with a layer each.
        iterations: of the run.
        more: options.
        keys: more of the model file.
    """
    output.parent.mkdir(exist_ok=True)
    model = output.parent / "model.toml"
    width = "hidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\n"
    model.write_text(f"layers = {stages}\n{width}{keys}")
    counts = zip(
        ("pipelines", "stages", "micro-batches", "iterations"), (pipelines, stages, 2, iterations), strict=True
    )
    return ["train", *(f"--{name}={count}" for name, count in counts), "--model", str(model), "-o", str(output), *more]


class Started:
    """One process, and what it and those below it print.

    Args:
        words: its command line.
        host: where it runs; None for this machine.
        variables: for its environment.
        imported: what the process has imported that it is forked from; empty where it starts from nothing.
    """

    def __init__(
        self,
        words: Sequence[str],
        host: Host | None = None,
        variables: Mapping[str, str] | None = None,
        imported: str = "",
    ) -> None:
        self.words, self.output = tuple(words), ""
        changes = {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(), "TORCH_CPP_LOG_LEVEL": "FATAL"}
        environment = {**os.environ, **changes, **(variables or {})}
        self.process: Forked | subprocess.Popen[str]
        if imported:
            assert words[0] == sys.executable
            self.process = Forked(words[1:], environment, Path.cwd(), imported, host)
        else:
            self.process = subprocess.Popen(
                host.command(*words) if host is not None else list(words),
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, text: str, seconds: float = 120.0) -> None:
        """Wait until something was printed."""
        wait_until(lambda: text in self.output or self.process.poll() is not None, seconds, f"{text!r} did not come")
        if text not in self.output:
            # It has ended, and what it said last may not be read yet.
            self._reader.join(10)
        assert text in self.output, self.output[-6000:]

    def ended(self, seconds: float = 120.0) -> int:
        """The exit status, after it has ended."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it goes on after {seconds:g} s: {self.output[-6000:]}") from error
        self._reader.join(10)
        return status

    def processes(self, pattern: str) -> list[int]:
        """The processes below it whose title matches a pattern."""
        below = sorted(family(self.process.pid) - {self.process.pid})
        return [each for each in below if re.search(pattern, title(each))]

    def kill(self) -> None:
        """End it, however far it is."""
        self.process.kill()
        self.process.wait()
        self._reader.join(10)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.output += line


def torchrun(
    node: int, nodes: int, ranks: int, master: Host, *arguments: str, module: str = "harness.scripts.train"
) -> list[str]:
    """What is typed on one of several hosts."""
    return [
        *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--rdzv-backend", "static"),
        *("--nnodes", str(nodes), "--node-rank", str(node), "--nproc-per-node", str(ranks)),
        *("--master-addr", master.name, "--master-port", "29500", "-m", module, *arguments),
    ]


def by_hand(rank: int, count: int, master: str, port: int) -> dict[str, str]:
    """What is set for one of several processes."""
    return {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": master, "MASTER_PORT": str(port)}


def recorded(folder: Path) -> list[Line]:
    """All that a run's processes have written. The last line of each may be half there, as a process was killed."""
    files = [path.read_bytes().rpartition(b"\n")[0] for path in sorted((folder / "events").glob("*.jsonl"))]
    return [msgspec.json.decode(text, type=Line) for file in files for text in file.splitlines()]


def count_iterations(folder: Path, server: str = "*") -> int:
    """How many a server of a run, or all of them together, have made."""
    return sum(each.read_bytes().count(b'"type":"iteration"') for each in folder.glob(f"events/{server}.jsonl"))


def losses(folder: Path) -> dict[int, list[float]]:
    """Of a run, by step; an iteration that was made again counts as it was made last."""
    found: dict[int, tuple[int, list[float]]] = {}
    for line in recorded(folder):
        if isinstance(line, IterationLine) and line.losses and found.get(line.step, (-1, []))[0] <= line.epoch:
            found[line.step] = line.epoch, [math.nan if each is None else each for each in line.losses]
    return {step: losses for step, (_, losses) in sorted(found.items())}


class Views:
    """The views of a run that goes on. What was read is not read again: recordings get large while somebody waits.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = defaultdict(int)
        self._views: list[ViewLine] = []

    @property
    def newest(self) -> ViewLine:
        """That the run is in; it has one."""
        for path in (self._folder / "events").glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                # The last line may be half there.
                found, end, _ = file.read().rpartition(b"\n")
            self._read[path] += len(found) + len(end)
            for text in found.splitlines():
                if b'"type":"view"' in text:
                    line = msgspec.json.decode(text, type=Line)
                    assert isinstance(line, ViewLine)
                    self._views.append(line)
        return max(self._views, key=lambda line: line.epoch)


def newest_view(folder: Path) -> ViewLine:
    """Of a run that goes on, and has one."""
    return Views(folder).newest


def wait_until(condition: Callable[[], Found], seconds: float = 120.0, missed: str = "it did not come") -> Found:
    """Wait for something that comes, and give it; an assertion says otherwise that it was missed."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, missed
        time.sleep(0.02)
    return found
