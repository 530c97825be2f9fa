"""What is left of a job after its end: processes, output, files and exit status, against stock Megatron's.

Usage: PYTHONPATH=.megatron-0.17.1 python -m benchmarks.ends [CASE ...]

A job of two servers is started by torchrun (a Megatron script, with and without the flag, that saves checkpoints) or
by ``recycle train``. It is left alone, or after some iterations a worker is stopped for ever (SIGSTOP), an agent is
killed, or what has started the job is killed. Its processes are told by a variable that all of them inherit. The first
rank of a Megatron script counts its descriptors after ten iterations and when the script is over, in every kind of job.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from benchmarks.host_jobs import train_words
from benchmarks.interrupted import until_interrupted
from harness.processes import environment, parent, processes, send_signal, title

MARK = "RECYCLE_BENCHMARK_ENDS"
VICTIM = "recycle: W1_0"
STRIKE, ITERATIONS = 5, 150
LINE = re.compile(r"iteration +(\d+)/")
DESCRIPTORS = re.compile(r"^open (.*): (.*)$")
PATIENCE, STAYS = 140.0, 2.0
"""Seconds after which a job has hung, and for which processes may outlive what has started them."""

FLAG = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-restarts", 0)
EVENTS = ("undisturbed", "worker stopped", "agent killed", "starter killed")
CASES = {
    "stock": ("stock", EVENTS[0]),
    **{f"{kind}-{event.split()[0]}": (kind, event) for kind in ("flag", "train") for event in EVENTS},
}


def command_of(kind: str, folder: Path) -> list[str]:
    """The command line of a job."""
    if kind == "train":
        words = train_words(folder, ITERATIONS, (2, 1))
        return [sys.executable, "-m", "harness.scripts.train", *words, "--restarts", "0"]
    from harness.flag_runs import TORCHRUN, make_dataset, words_of

    saves = ("--save", folder / "saved", "--save-interval", 50, "--eval-interval", 1000, "--lr", 2e-3)
    given = (*saves, "--pipeline-model-parallel-size", 1, *(FLAG if kind == "flag" else ()))
    words = words_of(make_dataset(folder / "text"), *given, iterations=ITERATIONS, script="descriptors_gpt.py")
    return [sys.executable, "-W", "ignore", *TORCHRUN, "2", "-m", "recycle.megatron", *words]


def marked(mark: str) -> dict[int, str]:
    """The processes of a job that live, and what each is called."""
    return {pid: title(pid) for pid in processes() if environment(pid).get(MARK) == mark}


def strike(event: str, starter: int, mark: str) -> None:
    """Let it happen."""
    if event == EVENTS[3]:
        send_signal(starter, signal.SIGKILL)
        return
    (worker,) = [pid for pid, name in marked(mark).items() if name == VICTIM]
    if event == EVENTS[1]:
        send_signal(worker, signal.SIGSTOP)
    elif agent := parent(worker):
        send_signal(agent, signal.SIGKILL)


class Watched:
    """A job's lines, and what happens to it at one of them.

    Args:
        kind: of the job.
        event: that happens to it.
        folder: where it works.
    """

    def __init__(self, kind: str, event: str, folder: Path) -> None:
        from harness.paths import python_path

        self.mark = uuid.uuid4().hex
        self.said: list[str] = []
        self.opened: dict[str, str] = {}
        self.done = 0
        self._event = event
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        self._struck = threading.Event()
        variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(), "PYTHONWARNINGS": "ignore", MARK: self.mark}
        variables["TMPDIR"] = str(self._scratch)
        self.process = subprocess.Popen(
            command_of(kind, folder),
            env=os.environ | variables,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)

    def watch(self) -> str:
        """Wait until nothing of it is left; gives the row of the table."""
        self._reader.start()
        try:
            began = self._wait()
            return self._row(began)
        finally:
            for pid in marked(self.mark):
                send_signal(pid, signal.SIGKILL)
            self.process.wait()

    def _wait(self) -> float:
        deadline = time.monotonic() + PATIENCE
        began = 0.0
        while time.monotonic() < deadline and (self.process.poll() is None or marked(self.mark)):
            if self.done >= STRIKE and self._event != EVENTS[0] and not self._struck.is_set():
                self._struck.set()
                self.said.clear()
                strike(self._event, self.process.pid, self.mark)
                began = time.monotonic()
            if self.process.poll() is not None and self._event != EVENTS[3]:
                break
            time.sleep(0.05)
        return began

    def _row(self, began: float) -> str:
        after = f"{time.monotonic() - began:.0f} s" if began else ""
        time.sleep(STAYS)
        left = marked(self.mark)
        self._reader.join(STAYS)
        status = self.process.poll()
        said = [line.strip() for line in self.said if "recycle: " in line or "W1_0" in line or "store" in line]
        cells = [
            "still there" if status is None else str(status),
            f"{self.done} of {ITERATIONS}",
            after,
            f"{len(left)} {' '.join(sorted(set(left.values())))[:200]}".strip(),
            "held" if self._reader.is_alive() else "closed",
            " ".join(sorted(each.name for each in self._scratch.iterdir())),
            "; ".join(f"{when} {kinds}" for when, kinds in self.opened.items()),
            " / ".join(dict.fromkeys(said))[:900],
        ]
        return " | ".join(cells)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := LINE.search(line):
                self.done = max(self.done, int(found[1]))
            elif counted := DESCRIPTORS.match(line):
                self.opened[counted[1]] = counted[2]
            else:
                self.said.append(line)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
    names = parser.parse_args(words).cases or list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(CASES)}")
    from harness.flag_runs import missing

    if missing and any(not name.startswith("train") for name in names):
        print(f"{', '.join(missing)} are not installed: scripts/develop does, in .megatron-0.17.1", file=sys.stderr)
        return 2
    ended = ("exit status", "iterations", "from then to the end")
    left_behind = ("processes left", "output", "temporary files left", "descriptors open")
    columns = ("case", *ended, *left_behind, "what is said")
    print(f"| {' | '.join(columns)} |")
    print(f"|{' --- |' * len(columns)}")
    left = 0
    with until_interrupted():
        for name in names:
            with tempfile.TemporaryDirectory() as temporary:
                row = Watched(*CASES[name], Path(temporary)).watch()
            left += " | 0 | closed | " not in row
            print(f"| {name} | {row} |", flush=True)
    print(f"{left} of {len(names)} jobs have left something behind; load {os.getloadavg()[0]:.1f}")
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
