"""Runs on three hosts made of namespaces, 12 servers: a host dies or is cut off, or Slurm starts the run.

Usage: python -m benchmarks.hosts lost [--trials 15] [--how crash cut pause] [--iterations 60] [--loops 0] [--exact]
           [--etcd] [--flag]
       python -m benchmarks.hosts slurm [--trials 3] [--iterations 60] [--how nothing cancel crash] [--tasks 4]

All of it takes root, and tools that make namespaces.

``lost``: each host has one pipeline of four stages, and a torchrun. In each trial, a run of its own, a host is killed
at one moment, or its cable is pulled and put back once the others go on, or all its processes are stopped for 20 s.
Without --etcd the first host, which has the store, is spared; with it, every host has a member of etcd, which is lost
with it. With --flag it is Megatron's script under the flag instead of ``recycle train``; that needs Megatron's
training code. A trial is good if the others make the first instruction of the redo within the silence and a second,
lose no iteration, have the losses of an undisturbed run (to the bit with --exact), and end with status 0 within ten
seconds; and if nothing was written on the other side after the cut.

``slurm``: with Debian's slurm-wlm, three nodes are started by the commands of docs/howto/slurm.md. In turns,
nothing happens, the whole job is cancelled and goes on from its checkpoint, and a node that is not the first crashes
with its slurmd. Losses are compared with those of a run without Slurm.
"""

import argparse
import contextlib
import itertools
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.shared import busy, run_part, until_interrupted
from harness.etcd import etcd
from harness.etcd import missing as missing_etcd
from harness.hosts import Host, hosts, missing
from harness.slurm import Cluster, cluster
from harness.slurm import missing as missing_slurm
from harness.started import TRAIN, Started, losses, newest_view, torchrun, wait_until
from recycle.control.membership.durations import Durations
from recycle.record.reading import load_lines
from recycle.record.recording import IterationLine, RecoveryLine

PIPELINES, STAGES = 3, 4
MODEL = "layers = 4\nhidden = 32\nheads = 2\nsequence = 16\nmicro_batch_size = 2\nlearning_rate = 0.01\n"


class HostJob(NamedTuple):
    """What torchrun starts on every host.

    Attributes:
        module: with the ``main`` of the job.
        words: its arguments, for a folder into which it records, a number of iterations, and a store if it is etcd.
        line: what is printed after an iteration, as a regular expression.
    """

    module: str
    words: Callable[[Path, int, str], list[str]]
    line: Callable[[int, int], str]


def train_words(
    folder: Path,
    iterations: int,
    shape: tuple[int, ...] = (PIPELINES, STAGES),
    store: str = "",
    *,
    exact: bool = False,
) -> list[str]:
    """The command line of a run of ``recycle train``."""
    folder.mkdir(exist_ok=True)
    (folder / "model.toml").write_text(MODEL + "exact = true\n" * exact)
    pipelines, stages = map(str, shape)
    size = ["--pipelines", pipelines, "--stages", stages, "--micro-batches", "4"]
    files = ["--model", str(folder / "model.toml"), "-o", str(folder / "run")]
    chosen = ["--store", store] if store else []
    return ["train", *size, "--iterations", str(iterations), *files, *chosen]


def train_job(*, exact: bool) -> HostJob:
    """``recycle train``, with sums that are exact or not."""
    return HostJob(
        "harness.scripts.train",
        lambda folder, iterations, store: train_words(folder, iterations, store=store, exact=exact),
        lambda step, last: f"iteration {step}/{last}",
    )


def flag_job(dataset: Path, *, exact: bool) -> HostJob:
    """A Megatron script under the flag, whose pipelines are on a host each; that needs Megatron's training code.

    Args:
        dataset: the prefix of an indexed dataset.
        exact: whether failures may change no bit of what is trained.
    """
    # It takes a second to import what only this job needs.
    from harness.flag_runs import words_of

    def words(folder: Path, iterations: int, store: str) -> list[str]:
        folder.mkdir(exist_ok=True)
        size = ("--pipeline-model-parallel-size", STAGES, "--use-tp-pp-dp-mapping", "--global-batch-size", 24)
        calm = ("--lr", 2e-3, "--eval-interval", 1000)
        survives = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-record", folder / "run")
        chosen = ("--recycle-exact",) * exact + (("--recycle-store", store) if store else ())
        return words_of(dataset, *size, *calm, *survives, *chosen, iterations=iterations)

    return HostJob("recycle.megatron", words, lambda step, last: rf"iteration +{step}/ +{last}")


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
    apart = furthest(found, expected)
    problems = {
        f"the redo began after {first:.1f} s": first > ALLOWED,
        f"exit status {', '.join(map(str, statuses))}": any(statuses),
        f"the end took {ended:.1f} s": ended > SOON,
        "iterations are missing": list(found) != list(expected),
        f"losses are up to {apart:.1e} apart": apart > far,
        f"{written} iterations were made on the other side": written > 0,
    }
    return Trial(first, ended, "; ".join(text for text, holds in problems.items() if holds))


def furthest(found: Mapping[int, list[float]], expected: Mapping[int, list[float]]) -> float:
    """How far losses of iterations that both have are apart, relative to what they should be, at worst."""
    pairs = [pair for step in found.keys() & expected.keys() for pair in zip(found[step], expected[step], strict=True)]
    return max((abs(one - other) / abs(other) for one, other in pairs), default=0.0)


def lost() -> int:
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


LAUNCH = ("srun", "--nodes=3", "--no-kill", "--kill-on-bad-exit=0")


LONG_PATIENCE = 300.0
"""Seconds for what takes longest on a busy machine: twelve processes that import PyTorch and Megatron."""


def job_words(folder: Path, iterations: int, stages: int) -> list[str]:
    words = train_words(folder, iterations, (PIPELINES, stages))
    return [*TRAIN, *words, "--resume-from", str(folder / "run")]


def start_job(made: Cluster, arguments: list[str]) -> Started:
    tasks, iterations = (arguments[arguments.index(name) + 1] for name in ("--stages", "--iterations"))
    # Whoever asks Slurm for nodes waits until those of the last job are free.
    begun = time.monotonic()
    run = Started([*LAUNCH, f"--ntasks-per-node={tasks}", *arguments], made.controller, made.variables)
    run.wait_for(f"/{iterations}", LONG_PATIENCE)
    print(f"trains {time.monotonic() - begun:.0f} s after srun", file=sys.stderr, flush=True)
    return run


def crash_node(made: Cluster, arguments: list[str], source: random.Random) -> tuple[int, str]:
    """A node goes down in the middle of training; what is printed, and srun's status."""
    run = start_job(made, arguments)
    run.wait_for("iteration 5/")
    time.sleep(source.random())
    made.nodes[2].crash()
    return run.ended(LONG_PATIENCE), run.output


def cancel_job(made: Cluster, arguments: list[str], source: random.Random) -> tuple[int, str]:
    """The job is cancelled, and started again."""
    run = start_job(made, arguments)
    run.wait_for("iteration 5/")
    time.sleep(source.random())
    job = made.ask("squeue", "-h", "-o", "%i").split()[-1]
    made.ask("scancel", job)
    run.ended(LONG_PATIENCE)
    assert "with a checkpoint" in run.output, run.output
    again = start_job(made, arguments)
    return again.ended(LONG_PATIENCE), again.output


def leave_alone(made: Cluster, arguments: list[str], _: random.Random) -> tuple[int, str]:
    """Nothing happens."""
    run = start_job(made, arguments)
    return run.ended(LONG_PATIENCE), run.output


KINDS = {
    "nothing": ("nothing", leave_alone),
    "cancel": ("scancel, and again", cancel_job),
    "crash": ("a node crashes", crash_node),
}


def slurm() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=3, help="of each kind")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--how", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--tasks", type=int, default=4, help="servers on each node, and stages of the job")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if why := missing_slurm():
        print(why, file=sys.stderr)
        return 2
    source = random.Random(arguments.seed)
    print("| what happens | to its end | srun's status | losses differ by at most | leftovers |")
    print("| --- | --- | --- | --- | --- |")
    wrong = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        alone = Started(job_words(folder / "alone", arguments.iterations, arguments.tasks))
        assert alone.ended(LONG_PATIENCE) == 0, alone.output
        expected = losses(folder / "alone" / "run")
        for number in range(arguments.trials):
            for kind, run in map(KINDS.__getitem__, arguments.how):
                # A node that has crashed is gone, so each trial has a cluster of its own.
                place = folder / f"{number}-{kind.split()[0].strip(',')}-{len(kind)}"
                place.mkdir()
                with cluster(3, place / "slurm") as made:
                    status, output = run(made, job_words(place / "job", arguments.iterations, arguments.tasks), source)
                    ended = f"iteration {arguments.iterations}/{arguments.iterations}" in output
                    left = leftovers(made)
                found = losses(place / "job" / "run")
                apart = furthest(found, expected) if found.keys() == expected.keys() else float("inf")
                wrong |= not ended or apart > 1e-5
                print(f"| {kind} | {'yes' if ended else 'no'} | {_named(status)} | {apart:.1e} | {left} |", flush=True)
                if not ended:
                    print(output[-3000:], file=sys.stderr)
    return int(wrong)


def _named(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else str(status)


def leftovers(made: Cluster) -> int:
    """Processes of the run that are left on nodes that live."""
    count = 0
    for host in made.nodes:
        shown = subprocess.run(host.command("ps", "ax", "-o", "args="), capture_output=True, text=True, check=False)
        count += sum(line.startswith("recycle:") for line in shown.stdout.splitlines())
    return count


if __name__ == "__main__":
    sys.exit(run_part(__doc__, {"lost": lost, "slurm": slurm}))
