"""A host that dies or is cut off: three hosts made of namespaces, 12 servers, torchrun on each.

Usage: python -m benchmarks.hosts [--trials 15] [--how crash cut pause] [--iterations 60] [--loops 0] [--exact] [--etcd]
                                  [--flag]

Each host has one pipeline of four stages. In each trial, a run of its own, a host is killed at one moment, or its cable
is pulled and put back once the others go on, or all its processes are stopped for 20 s. Without --etcd the first host,
which has the store, is spared; with it, every host has a member of etcd, which is lost with it, and the first one is
lost as often as others. With --flag it is Megatron's script under the flag instead of ``recycle train``; that needs
Megatron's training code. All of it takes root, and tools that make namespaces.

A trial is good if the others make the first instruction of the redo within the silence and a second, lose no iteration,
have the losses of an undisturbed run (to the bit with --exact), and end with status 0 within ten seconds; and if
nothing was written on the other side after the cut.
"""

import argparse
import contextlib
import itertools
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.false_deaths import busy
from benchmarks.host_jobs import PIPELINES, STAGES, HostJob, flag_job, train_job
from benchmarks.interrupted import until_interrupted
from harness.etcd import etcd
from harness.etcd import missing as missing_etcd
from harness.hosts import Host, hosts, missing
from harness.started import Started, losses, newest_view, torchrun, wait_until
from recycle.control.membership.durations import Durations
from recycle.record.reading import load_lines
from recycle.record.recording import IterationLine, RecoveryLine

ALLOWED = Durations().silence + 1
SOON = 10.0
STOPPED_FOR = 20.0
FAR = 1e-5
MICROSECONDS = 1e6
PATIENCE = 240.0
LEFT = (PIPELINES - 1) * STAGES
VARIABLES = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


class Trial(NamedTuple):
    """What came of a host's loss.

    Attributes:
        first: seconds until the first instruction of the redo.
        ended: seconds from the end of training until the last survivor's launcher was gone.
        problem: what is wrong; empty if nothing.
    """

    first: float
    ended: float
    problem: str


class NotCome(Exception):
    """Something that a trial waits for has not come."""


class Trials(NamedTuple):
    """What all trials have in common.

    Attributes:
        job: what is started.
        iterations: of a run.
        with_etcd: whether hosts have members of etcd.
        exact: whether losses have to be equal to the bit.
    """

    job: HostJob
    iterations: int
    with_etcd: bool
    exact: bool

    def start(self, made: Sequence[Host], folder: Path, store: str) -> list[Started]:
        """Torchrun on every host."""
        words = self.job.words(folder, self.iterations, store)
        return [
            Started(torchrun(number, len(made), STAGES, made[0], *words, module=self.job.module), host, VARIABLES)
            for number, host in enumerate(made)
        ]

    def undisturbed(self, folder: Path) -> dict[int, list[float]]:
        """The losses of a run that nothing befalls."""
        with hosts(PIPELINES) as made:
            for node in self.start(made, folder, ""):
                assert node.ended(600) == 0, node.output
        return losses(folder / "run")

    def lose(self, victim: int, how: str, folder: Path, expected: Mapping[int, list[float]]) -> Trial:
        """One run, in which a host is lost."""
        with contextlib.ExitStack() as stack:
            made = stack.enter_context(hosts(PIPELINES))
            store = stack.enter_context(etcd(len(made), made)).url if self.with_etcd else ""
            nodes = self.start(made, folder, store)
            for node in nodes:
                stack.callback(node.kill)
            survivors = {each.name: nodes[number] for number, each in enumerate(made) if number != victim}
            try:
                self.await_iteration(nodes, 5)
                moment = time.monotonic()
                if how == "crash":
                    made[victim].crash()
                elif how == "cut":
                    made[victim].pull_plug()
                    await_without(folder)
                    made[victim].push_plug()
                else:
                    made[victim].pause()
                    await_without(folder)
                    time.sleep(max(0.0, moment + STOPPED_FOR - time.monotonic()))
                    made[victim].go_on()
                # One that was cut off and was the first host shows the others' iterations when it hears of them again.
                self.await_iteration(nodes, self.iterations)
                done = time.monotonic()
                for name, node in survivors.items():
                    await_(f"the end of {name}", partial(has_ended, node))
                ended = time.monotonic() - done
            except NotCome as error:
                for name, node in survivors.items():
                    print(f"{name} said\n{node.output[-2000:]}", file=sys.stderr, flush=True)
                return Trial(float("inf"), float("inf"), str(error))
            statuses = [node.ended() for node in survivors.values()]
            return judge(folder / "run", moment, ended, statuses, f"W{victim}_", expected, 0.0 if self.exact else FAR)

    def await_iteration(self, nodes: Collection[Started], step: int) -> None:
        """Wait until one of them has printed that it was made."""
        line = re.compile(self.job.line(step, self.iterations))
        await_(f"iteration {step}", lambda: any(line.search(node.output) for node in nodes))


def await_without(folder: Path) -> None:
    """Wait until a run's view is one without the host that is lost."""
    await_("a view without it", lambda: len(newest_view(folder / "run").servers) == LEFT)


def has_ended(node: Started) -> bool:
    """Whether a launcher has."""
    return node.process.poll() is not None


def await_(what: str, condition: Callable[[], bool]) -> None:
    """Wait for something that comes, or is said not to have."""
    try:
        wait_until(condition, PATIENCE)
    except AssertionError as error:
        raise NotCome(f"{what} has not come within {PATIENCE:g} s") from error


def judge(
    folder: Path,
    moment: float,
    ended: float,
    statuses: Sequence[int],
    lost: str,
    expected: Mapping[int, list[float]],
    far: float,
) -> Trial:
    """What a run left, and whether that is as it should be."""
    lines = list(load_lines(folder))
    recovered = [each for each in lines if isinstance(each, RecoveryLine) and each.resumed > moment * MICROSECONDS]
    begun = [each.resumed / MICROSECONDS - moment for each in recovered]
    # The iteration that is made again may have been made where all that it takes had come before the cut.
    last = min((each.step for each in recovered), default=0)
    theirs = [each for each in lines if isinstance(each, IterationLine) and each.server.startswith(lost)]
    written = sum(each.epoch > 0 or each.step > last for each in theirs)
    first, found = min(begun, default=float("inf")), losses(folder)
    apart = max(
        (
            abs(one - other) / abs(other)
            for step in found.keys() & expected.keys()
            for one, other in zip(found[step], expected[step], strict=True)
        ),
        default=0.0,
    )
    problems = {
        f"the redo began after {first:.1f} s": first > ALLOWED,
        f"exit status {', '.join(map(str, statuses))}": any(statuses),
        f"the end took {ended:.1f} s": ended > SOON,
        "iterations are missing": list(found) != list(expected),
        f"losses are up to {apart:.1e} apart": apart > far,
        f"{written} iterations were made on the other side": written > 0,
    }
    return Trial(first, ended, "; ".join(text for text, holds in problems.items() if holds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=15, help="of each kind")
    parser.add_argument("--how", nargs="+", choices=["crash", "cut", "pause"], default=["crash", "cut"])
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--loops", type=int, default=0, help="how many other processes keep the machine busy")
    parser.add_argument("--exact", action="store_true", help="sum exactly, and expect equal losses to the bit")
    parser.add_argument("--etcd", action="store_true", help="a member on each host, and any host is lost")
    parser.add_argument("--flag", action="store_true", help="a Megatron script under the flag")
    arguments = parser.parse_args()
    if why_not := missing() or (missing_etcd() if arguments.etcd else ""):
        print(why_not, file=sys.stderr)
        return 2
    found: dict[str, list[Trial]] = {how: [] for how in arguments.how}
    with until_interrupted(), tempfile.TemporaryDirectory() as temporary, busy(arguments.loops):
        if arguments.flag:
            from harness.flag_runs import make_dataset

            job = flag_job(make_dataset(Path(temporary) / "text"), exact=arguments.exact)
        else:
            job = train_job(exact=arguments.exact)
        trials = Trials(job, arguments.iterations, arguments.etcd, arguments.exact)
        print("a run that nothing befalls", file=sys.stderr, flush=True)
        expected = trials.undisturbed(Path(temporary) / "undisturbed")
        victims = itertools.cycle(range(0 if arguments.etcd else 1, PIPELINES))
        for number, victim in zip(range(arguments.trials), victims, strict=False):
            for how in arguments.how:
                trial = trials.lose(victim, how, Path(temporary) / f"{how}-{number}", expected)
                found[how].append(trial)
                which = f"{how} of host{victim + 1}, {number + 1} of {arguments.trials}"
                took = f"{trial.first:.2f} s, gone {trial.ended:.2f} s after the end"
                print(f"{which}: {took}, {trial.problem or 'good'}", file=sys.stderr, flush=True)
    print("how   | good      | first instruction of the redo: median, worst | end: worst")
    for how, made in found.items():
        if not made:
            continue
        firsts = [each.first for each in made]
        good = f"{sum(not each.problem for each in made)} of {len(made)}"
        middle, worst = statistics.median(firsts), max(firsts)
        print(f"{how:5} | {good:9} | {middle:6.2f} s {worst:6.2f} s | {max(each.ended for each in made):6.2f} s")
    print(f"load {os.getloadavg()[0]:.1f}; {ALLOWED:g} s are allowed")
    return int(any(each.problem for made in found.values() for each in made))


if __name__ == "__main__":
    sys.exit(main())
