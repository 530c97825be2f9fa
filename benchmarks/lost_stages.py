"""Stages whose servers all die, with the state in memory: hosts made of namespaces, and ``recycle train`` on each.

Usage: python -m benchmarks.lost_stages FILE [--rows servers-2 servers-3 host all parity-3+1 parity-4+2] [--trials 20]
           [--seconds 0]

Each trial is a run of its own, with --exact and without a checkpoint, which is hit at another moment:

``servers-N``: 3 hosts, copies=2; all N servers of a stage are killed at once, and started again.
``host``: 2 hosts, copies=2, a stage on each; one is lost with its keeper, and new servers join on a third one.
``all``: 2 hosts, copies=2; all trainers are killed at once, and the same command goes on with --resume.
``parity-3+1``: 4 hosts, a stage on each; one is lost, and new servers join on a fifth one.
``parity-4+2``: 6 hosts, a server on each; the two that have a stage are lost, and new servers join on a seventh one.

A trial is good if all iterations have the losses of an undisturbed run to the bit, at most one whole iteration was
lost, no checkpoint was read, every process ended well, and no keeper is left. Of the servers that join, one has to be
in before the run ends. It takes root, and tools that make namespaces.

The next trial is one of the row that has the fewest so far. What came of it is written to the file at once, as a line
of JSON. The same command goes on where the file ends, until each row has so many; or with --seconds begins none after
that time.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.interrupted import until_interrupted
from benchmarks.run_file import RunFile
from harness.hosts import Host, hosts, missing
from harness.started import TRAIN, Started, by_hand, losses, wait_until
from recycle.cli.join import LATE
from recycle.job import Server
from recycle.record.reading import load_lines
from recycle.record.recording import ViewLine

MODEL = "layers = {stages}\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\n"
ITERATIONS = 30
EARLIEST, LATEST = 4, 20
"""Iterations after which it is hit."""
PORT = 29500
OUTPUT = 600
"""Characters that are shown of what a process has said that did not end well."""


class Row(NamedTuple):
    """What is done.

    Attributes:
        redundancy: as --keep-in-memory has it.
        pipelines: of the job.
        stages: of the job.
        on: the host of each server, by rank.
        hit: what is lost: servers of a stage, hosts, or all trainers.
    """

    redundancy: str
    pipelines: int
    stages: int
    on: tuple[int, ...]
    hit: str

    @property
    def hosts(self) -> int:
        """How many have servers at first."""
        return max(self.on) + 1


ROWS = {
    "servers-2": Row("copies=2", 2, 3, (0, 1, 2, 1, 2, 0), "servers"),
    "servers-3": Row("copies=2", 3, 2, (0, 0, 1, 1, 2, 2), "servers"),
    "host": Row("copies=2", 2, 2, (0, 1, 0, 1), "hosts"),
    "all": Row("copies=2", 2, 2, (0, 1, 0, 1), "all"),
    "parity-3+1": Row("parity=3+1", 2, 4, (0, 1, 2, 3, 0, 1, 2, 3), "hosts"),
    "parity-4+2": Row("parity=4+2", 2, 3, (0, 1, 2, 3, 4, 5), "hosts"),
}


def words(row: Row, folder: Path, *, keeps: bool = True) -> list[str]:
    """The command line of a run."""
    folder.mkdir(exist_ok=True)
    (folder / "model.toml").write_text(MODEL.format(stages=row.stages))
    size = ["--pipelines", str(row.pipelines), "--stages", str(row.stages), "--micro-batches", "2"]
    keeping = ["--keep-in-memory", row.redundancy if keeps else "off"]
    files = ["--model", str(folder / "model.toml"), "-o", str(folder / "run")]
    return [*TRAIN, "train", *size, "--iterations", str(ITERATIONS), "--exact", *keeping, *files]


def try_once(row: Row, folder: Path, moment: random.Random, expected: Mapping[int, list[float]]) -> str:
    """One run that is hit; gives what is wrong, and nothing if that is nothing."""
    with hosts(row.hosts + 1) as made:
        *used, spare = made
        started, joiners = start(row, words(row, folder), used), list[Started]()
        try:
            # Not the host of the store.
            stage = moment.randrange(1, row.stages)
            step = moment.randint(EARLIEST, LATEST)
            started[0].wait_for(f"iteration {step}/", 240)
            time.sleep(moment.uniform(0, 0.1))  # somewhere in an iteration, or in a snapshot
            lost = {row.on[place * row.stages + stage] for place in range(row.pipelines)}
            if row.hit == "servers":
                kill_servers(used, stage)
            elif row.hit == "hosts":
                for number in lost:
                    used[number].crash()
                started[0].wait_for(f"no live server of stage {stage} is left", 60)
                joiners = [join(folder, Server(place, stage), spare) for place in range(row.pipelines)]
                started += joiners
            else:
                for host in used:
                    subprocess.run(host.command("pkill", "-KILL", "-f", "harness.scripts.train|recycle: [^k]"))
                for run in started:
                    run.ended()
                started = start(row, [*words(row, folder), "--resume"], used)
            gone = lost if row.hit == "hosts" else set()
            last = [each for place, each in enumerate(started) if place >= len(row.on) or row.on[place] not in gone]
            ends = [each.ended(240) for each in last]
            # One server of a stage is enough for the others to go on, to an end before the next one is in.
            late = [each for each in joiners if LATE in " ".join(each.output.split())]
            if len(late) < len(joiners):
                ends = [0 if each in late else end for each, end in zip(last, ends, strict=True)]
            left = [each for place, each in enumerate(made) if place not in gone]
            wait_until(lambda: not any(has_keeper(each) for each in left), 30)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"{error}"[-300:]
        finally:
            for run in started:
                run.kill()
    said = [each.output[-OUTPUT:] for each, end in zip(last, ends, strict=True) if end]
    return "\n".join(filter(None, [judge(folder / "run", ends, step, expected), *said]))


def start(row: Row, arguments: Sequence[str], used: Sequence[Host]) -> list[Started]:
    """All processes of a run."""
    return [
        Started(arguments, used[host], by_hand(rank, len(row.on), used[0].address, PORT))
        for rank, host in enumerate(row.on)
    ]


def join(folder: Path, server: Server, host: Host) -> Started:
    """A server that takes the place of a dead one."""
    return Started([*TRAIN, "join", str(folder / "run"), "--address", host.address, "--server", str(server)], host)


def kill_servers(used: Sequence[Host], stage: int) -> None:
    """All of a stage, at once."""
    commands = [each.command("pkill", "-KILL", "-f", f"^recycle: W[0-9]+_{stage}$") for each in used]
    for each in [subprocess.Popen(command) for command in commands]:
        each.wait()


def has_keeper(host: Host) -> bool:
    """Whether a keeper is left there."""
    return not subprocess.run(host.command("pgrep", "-f", "^recycle: keeper"), stdout=subprocess.DEVNULL).returncode


def judge(folder: Path, ends: Sequence[int], step: int, expected: Mapping[int, list[float]]) -> str:
    """What is wrong with a run that was hit after an iteration."""
    views = [each for each in load_lines(folder) if isinstance(each, ViewLine)]
    again = min((each.step for each in views if each.epoch > 0), default=0)
    problems = {
        f"exit status {', '.join(map(str, ends))}": any(ends),
        "the losses are others": losses(folder) != expected,
        "a checkpoint was read": any(each.restore != "memory" for each in views if each.epoch > 0),
        "nothing was brought back": not again,
        # What is seen on the screen is done by all, and the next iteration is on its way.
        f"it went back to {again}, and was at {step}": again < step - 1,
    }
    return "; ".join(text for text, holds in problems.items() if holds)


def undisturbed(row: Row, folder: Path) -> Mapping[int, list[float]]:
    """The losses of a run of a row in which nothing happens."""
    run = Started(words(row, folder, keeps=False))
    assert run.ended(600) == 0, run.output
    return losses(folder / "run")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS], default=[*ROWS])
    parser.add_argument("--trials", type=int, default=20, help="of each row")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--seconds", type=float, default=0.0, help="after which no trial begins; 0 for no end")
    arguments = parser.parse_args()
    if why_not := missing():
        print(why_not, file=sys.stderr)
        return 2
    start, found = time.monotonic(), RunFile(arguments.file, arguments.rows)
    expected: dict[str, Mapping[int, list[float]]] = {}
    with until_interrupted(), tempfile.TemporaryDirectory() as temporary:
        while True:
            name = min(arguments.rows, key=lambda each: len(found.of(each)))
            number = len(found.of(name))
            if number >= arguments.trials or (arguments.seconds and time.monotonic() > start + arguments.seconds):
                break
            if name not in expected:
                expected[name] = undisturbed(ROWS[name], Path(temporary) / name)
            moment = random.Random(f"{arguments.seed} {name} {number}")
            try:
                problem = try_once(ROWS[name], Path(temporary) / f"{name}-{number}", moment, expected[name])
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                problem = f"no hosts could be made: {error}"
            found.add({"row": name, "trial": number, "problem": problem, "load": round(os.getloadavg()[0], 1)})
            print(f"{name} {number + 1} of {arguments.trials}: {problem or 'good'}", file=sys.stderr, flush=True)
    print("row        | good")
    for name in arguments.rows:
        problems = [each["problem"] for each in found.of(name)]
        print(f"{name:10} | {sum(not each for each in problems)} of {len(problems)}")
    print(f"load {os.getloadavg()[0]:.1f}")
    return int(any(each["problem"] for each in found.runs))


if __name__ == "__main__":
    sys.exit(main())
