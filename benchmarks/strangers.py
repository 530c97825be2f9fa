"""Another user of the machine at the doors of small runs of ``recycle train``: does training go on, and as quickly?

Usage: python -m benchmarks.strangers strikes [--runs 20] [--strikes 1000] [--seed S]
       python -m benchmarks.strangers floods [--pairs 5] [--connections 5000]
       python -m benchmarks.strangers hosts [--attack NAME ...] [--connections 1000]

It takes root, which can be another user. All train 2 x 2 servers of a tiny model.

``strikes``: in each run a stranger deletes, writes over, adds and puts back keys of the store. While it pauses, a
server is killed and returns; near the end another one is killed while it strikes. The run has to come to its end with
the bits of an undisturbed one, or, after the second kill, to end with the reason, and to do so with ``--resume``.

``floods``: how long does training stand still after ``kill -9`` of a server, with and without a flood at all doors, in
turns?

``hosts``: two hosts that are namespaces train, with copies in memory. One attack for each run is made while it trains:
by other users of both hosts and from a third host. Does each run come to its end with the bits of an undisturbed one,
and does no server die?
"""

import argparse
import contextlib
import os
import random
import re
import resource
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.shared import run_part, until_interrupted
from harness.attacked_runs import AT_STORE, BEGINS, GOES_ON, PATIENCE, OnHosts, attacked, begin, flooded
from harness.digests import data_digests
from harness.doors import FEW, everybody
from harness.floods import FLOODS
from harness.hosts import hosts as make_hosts
from harness.processes import PROCESSES, UNSEEN, family, send_signal, title
from harness.sockets import Listening, listening
from harness.started import Started, wait_until
from recycle.control.board.joinfile import JoinFile
from recycle.control.membership.addresses import address_for_others
from recycle.record.recording import Line, RecoveryLine
from recycle.runtime.checkpoint_folders import DIGESTS

ITERATIONS, EVERY = 60, 5
"""Of a run that is struck; it waits before each fifth one for its share of the strikes."""

STRUCK, RETURNS, LAST = EVERY, 25, 55
"""Iterations before which the strikes begin, a server is killed while they pause, and another one while they go on."""

SURVIVORS, MICROSECONDS = 3, 1e6
STANDSTILL, GROWTH = 10.0, 50.0
"""Seconds between two iterations and megabytes of a process that are too many."""

DEATH = re.compile(r"(W\S+) .*(?:was killed|has given no sign|did not answer)")
REASON = re.compile(
    r"the store was lost|the run cannot go on|no server reached the end|no live server of stage", re.MULTILINE
)


class Struck(NamedTuple):
    """What came of a run that was struck.

    Attributes:
        came: of it, in a word or two.
        strikes: how many there were.
        standstill: the longest time between two iterations without a death, in seconds.
        growth: of the process that grew most, in megabytes.
        problems: what was wrong.
    """

    came: str
    strikes: int
    standstill: float
    growth: float
    problems: list[str]


class Memory(threading.Thread):
    """Looks how much processes grow from now on, until it is ended.

    Args:
        first: the process above them.
    """

    def __init__(self, first: int) -> None:
        super().__init__(daemon=True)
        self._first = first
        self._over = threading.Event()
        self._sizes: dict[int, tuple[str, int, int]] = {}

    def run(self) -> None:
        """Look."""
        while not self._over.wait(0.5):
            for process in family(self._first):
                size, name = _resident(process), title(process)
                known, least, most = self._sizes.get(process, (name, size, size))
                if size:
                    self._sizes[process] = known, least, max(most, size)

    def end(self) -> float:
        """Megabytes by which the one grew that grew most. What was started meanwhile grows until it trains."""
        self._over.set()
        self.join()
        names = [name for name, _, _ in self._sizes.values()]
        return max((most - least) / 1e6 for name, least, most in self._sizes.values() if names.count(name) == 1)


def _resident(process: int) -> int:
    with contextlib.suppress(*UNSEEN, IndexError):
        return int((PROCESSES / str(process) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return 0


def files(folder: Path) -> Mapping[str, Mapping[str, str]]:
    """What the last checkpoint of a run holds; nothing if there is none."""
    last = max((folder / "run" / "checkpoints").glob("step-*"), default=folder)
    return {str(each.parent.relative_to(last)): data_digests(each.parent) for each in last.glob(f"**/{DIGESTS}")}


def undisturbed() -> Mapping[str, Mapping[str, str]]:
    """The files of a run that nothing befalls."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        run = begin(Path(name), "--iterations", str(ITERATIONS))
        ends.callback(run.kill)
        if run.ended(PATIENCE):
            sys.exit(f"a run that nothing befalls does not come to its end: {run.output[-3000:]}")
        return files(Path(name))


class Strikes:
    """A run with a stranger at its store.

    Args:
        folder: of the run.
        seed: of what the stranger does.
        count: of strikes.
        ends: what is ended with it.
    """

    def __init__(self, folder: Path, seed: int, count: int, ends: ExitStack) -> None:
        self._folder = folder
        self._count = count
        for step in range(EVERY, ITERATIONS, EVERY):
            (folder / str(step)).touch()
        # Within one machine alone, no other user reaches the store.
        self.run = begin(folder, "--iterations", str(ITERATIONS), "--restarts", "1", "--address", _own_address())
        ends.callback(self.run.kill)
        self.run.wait_for(f"iteration {STRUCK}/", PATIENCE)
        door = JoinFile.read(folder / "run" / "join.json")
        self._vandal = Started([sys.executable, "-m", "harness.scripts.vandal", door.host, str(door.port), str(seed)])
        ends.callback(self._vandal.kill)
        self.memory = Memory(self.run.process.pid)
        self.memory.start()
        self.standstill = 0.0
        self.killed: list[str] = []

    @property
    def strikes(self) -> int:
        """How many there were, as far as the stranger has said."""
        return max(map(int, re.findall(r"(\d+) strikes", self._vandal.output)), default=0)

    def pass_time(self) -> None:
        """Let the run go on as the strikes do, with a kill and a return in a pause, and a kill while they go on."""
        for step in range(STRUCK, ITERATIONS, EVERY):
            if not self._wait(partial(self._has_struck, self._count * step // ITERATIONS // 100 * 100)):
                return
            if step == RETURNS:
                self._kill_in_pause()
            elif step == LAST:
                self._kill("W0_1")
            began = time.monotonic()
            (self._folder / str(step)).unlink()
            if not self._wait(partial(self._has_made, min(step + EVERY, ITERATIONS - 1))):
                return
            if step not in (RETURNS, LAST):
                self.standstill = max(self.standstill, time.monotonic() - began)
            elif step == RETURNS:
                self._vandal.process.send_signal(signal.SIGUSR1)
        self._wait(partial(self._has_struck, self._count))

    def end(self) -> int:
        """Its exit status, after the strikes are over."""
        status = self.run.ended(PATIENCE)
        self._vandal.process.send_signal(signal.SIGTERM)
        self._vandal.ended()
        return status

    def _has_struck(self, count: int) -> bool:
        return self.strikes >= count

    def _has_made(self, iteration: int) -> bool:
        return f"iteration {iteration}/" in self.run.output

    def _wait(self, holds: Callable[[], bool]) -> bool:
        """Until something holds; says whether it does, and the run goes on."""
        wait_until(lambda: holds() or self.run.process.poll() is not None, PATIENCE)
        return self.run.process.poll() is None

    def _kill(self, server: str) -> None:
        for process in self.run.processes(f"^recycle: {server}$"):
            send_signal(process, signal.SIGKILL)
        self.killed.append(server)

    def _kill_in_pause(self) -> None:
        self._vandal.process.send_signal(signal.SIGUSR1)
        self._vandal.wait_for("pause 0")
        self._kill("W1_0")


def _own_address() -> str:
    """Of this machine, where others might reach it."""
    address = address_for_others()
    return address or sys.exit("this machine has no address but its own loopback: give it another one")


def strike(seed: int, count: int, expected: Mapping[str, Mapping[str, str]]) -> tuple[Struck, str]:
    """A run that is struck; gives what came of it, and what it printed."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        folder = Path(name)
        struck = Strikes(folder, seed, count, ends)
        struck.pass_time()
        status = struck.end()
        run, growth = struck.run, struck.memory.end()
        deaths = [each.partition(" ")[0] for each in DEATH.findall(run.output)]
        problems = [f"{each} died" for each in deaths if each not in struck.killed]
        came = "trained"
        if status:
            found = REASON.search(run.output)
            came = f"ended: {found[0]}" if found else "ended"
            problems += [] if found and len(struck.killed) == 2 else [f"no reason for its end: {run.output[-300:]}"]
            again = begin(folder, "--iterations", str(ITERATIONS), "--resume")
            ends.callback(again.kill)
            if again.ended(PATIENCE):
                problems.append(f"--resume: {again.output[-300:]}")
        if files(folder) != expected:
            problems.append("it has other bits than an undisturbed run")
        problems += [f"it stood still for {struck.standstill:.1f} s"] if struck.standstill > STANDSTILL else []
        problems += [f"a process grew by {growth:.0f} MB"] if growth > GROWTH else []
        return Struck(came, struck.strikes, struck.standstill, growth, problems), run.output


def strikes() -> int:
    parser = argparse.ArgumentParser(prog="strangers strikes", description="strikes at the store of runs")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--strikes", type=int, default=1000, help="in each run")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="default: any, which is printed")
    arguments = parser.parse_args()
    found: list[Struck] = []
    with until_interrupted():
        expected = undisturbed()
        for number in range(arguments.runs):
            struck, said = strike(arguments.seed + number, arguments.strikes, expected)
            found.append(struck)
            print(
                f"{arguments.seed + number}: {struck.came} after {struck.strikes} strikes, "
                f"{struck.standstill:.1f} s at most for {EVERY} iterations, {struck.growth:.0f} MB more at most; "
                f"{'; '.join(struck.problems) or 'as it should'}",
                flush=True,
            )
            if struck.problems:
                Path(f"strikes-{arguments.seed + number}.log").write_text(said)
    failed = [each for each in found if each.problems]
    print(
        f"seed {arguments.seed}: {len(failed)} of {len(found)} runs failed; {sum(each.strikes for each in found)} "
        f"strikes; {sum(each.came == 'trained' for each in found)} came to their end after both kills; at most "
        f"{max(each.standstill for each in found):.1f} s for {EVERY} iterations, and "
        f"{max(each.growth for each in found):.0f} MB more"
    )
    return int(bool(failed))


class Flooded:
    """A run that may open few files, as most logins may, and whose servers are killed again and again.

    Args:
        folder: of the run.
        ends: what is ended with it.
    """

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        more = ("--iterations", "10000000", "--restarts", "1000000", "--keep-in-memory", "copies=1")
        self.run = begin(folder, *more, limits=["prlimit", f"--nofile={FEW}:{hard}", "--"])
        ends.callback(self.run.kill)
        self.run.wait_for("iteration 50/", PATIENCE)
        self._events = folder / "run" / "events"
        self.token = JoinFile.read(folder / "run" / "join.json").token

    def doors(self) -> list[Listening]:
        """All that it listens at, also those of torch's transport."""
        return listening(everybody(self.run.process.pid, self.token))

    def recover(self) -> tuple[float, list[str]]:
        """Kill a server; gives the seconds until all others trained again, and which other processes are gone."""
        before = {each: title(each) for each in everybody(self.run.process.pid, self.token)}
        read = {path: path.stat().st_size for path in self._events.iterdir()}
        self._returns = self._count_returns()
        (victim,) = self.run.processes("^recycle: W1_0$")
        killed = time.monotonic()
        send_signal(victim, signal.SIGKILL)
        # The lines of an earlier recovery may be written only now.
        recent = partial(self._recoveries, read, killed * MICROSECONDS)
        wait_until(lambda: len(recent()) == SURVIVORS, PATIENCE)
        resumed = max(each.resumed for each in recent()) / MICROSECONDS
        gone = [name for each, name in before.items() if not title(each) and not name.endswith("W1_0")]
        return resumed - killed, gone

    def whole(self) -> None:
        """Wait until the server that was killed is back."""
        wait_until(lambda: self._count_returns() > self._returns, PATIENCE)

    def _count_returns(self) -> int:
        return self.run.output.count("is back: 4 of 4 servers")

    def _recoveries(self, read: Mapping[Path, int], since: float) -> list[RecoveryLine]:
        found = []
        for path in self._events.iterdir():
            with path.open("rb") as file:
                file.seek(read.get(path, 0))
                lines = [each for each in file if each.endswith(b"\n") and b'"recovery"' in each]
            found += [msgspec.json.decode(each, type=Line) for each in lines]
        return [each for each in found if isinstance(each, RecoveryLine) and each.resumed > since]


def floods() -> int:
    parser = argparse.ArgumentParser(prog="strangers floods", description="recoveries while strangers flood all doors")
    parser.add_argument("--pairs", type=int, default=5, help="of kills, for each flood")
    parser.add_argument("--connections", type=int, default=5000, help="to each door, that say nothing")
    parser.add_argument("--flood", nargs="+", choices=FLOODS, default=list(FLOODS))
    arguments = parser.parse_args()
    ended: list[str] = []
    with until_interrupted(), tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        run = Flooded(Path(name), ends)
        for flood in arguments.flood:
            plain, under = [], []
            for _ in range(arguments.pairs):
                plain.append(run.recover()[0])
                run.whole()
                doors = run.doors()
                with flooded(flood, doors, arguments.connections):
                    seconds, gone = run.recover()
                    run.whole()
                under.append(seconds)
                ended += gone
            ratios = [after / before for before, after in zip(plain, under, strict=True)]
            print(
                f"{flood:8} {len(doors)} doors: {statistics.median(plain):.2f} s without and "
                f"{statistics.median(under):.2f} s with it; ratio {statistics.median(ratios):.2f} in the median, from "
                f"{min(ratios):.2f} to {max(ratios):.2f}; ended: {', '.join(ended) or 'none'}",
                flush=True,
            )
    print(f"load {os.getloadavg()[0]:.1f}")
    return int(bool(ended))


ATTACKS = ("reads", *AT_STORE, *FLOODS)


def attack_hosts(attack: str, connections: int, expected: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A run on hosts under an attack; gives what was wrong, and then what it printed as well."""
    with tempfile.TemporaryDirectory() as name, make_hosts(3) as places, ExitStack() as ends:
        run = OnHosts(Path(name), places, ITERATIONS, ends)
        with attacked(run, attack, connections):
            run.go_on(BEGINS)
            run.ranks[0].wait_for(f"iteration {GOES_ON}/", PATIENCE)
            # Some times the silence after which a host is dead.
            time.sleep(12)
            run.go_on(GOES_ON)
            statuses = [each.ended(PATIENCE) for each in run.ranks]
        problems = [f"statuses {statuses}"] if any(statuses) else []
        problems += [f"{each} died" for each in DEATH.findall(run.output)]
        problems += ["it has other bits than an undisturbed run"] if files(run.folder) != expected else []
        return problems and [*problems, run.output]


def on_hosts() -> int:
    parser = argparse.ArgumentParser(prog="strangers hosts", description="attacks on runs on two hosts")
    parser.add_argument("--attack", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--connections", type=int, default=1000, help="to each door, that say nothing")
    arguments = parser.parse_args()
    good = 0
    with until_interrupted():
        expected = undisturbed()
        for attack in arguments.attack:
            problems = attack_hosts(attack, arguments.connections, expected)
            print(f"{attack:8} {'; '.join(problems) or 'equal to the bit, no death'}", flush=True)
            good += not problems
    print(f"{good} of {len(arguments.attack)} runs as they should be; load {os.getloadavg()[0]:.1f}")
    return int(good < len(arguments.attack))


def main() -> int:
    return run_part(__doc__, {"strikes": strikes, "floods": floods, "hosts": on_hosts})


if __name__ == "__main__":
    sys.exit(main())
