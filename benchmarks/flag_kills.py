"""Kills from outside of an unmodified ``pretrain_gpt.py`` under the flag: in saves, evaluations, logging, at any time.

Usage: PYTHONPATH=.megatron-0.17.1 python -m benchmarks.flag_kills TREE [--trials 30] [--job gpt] [--kinds save ...]

TREE is Megatron-LM's source tree of a release, whose data helpers are built. What it does not have in itself (yaml,
six, regex, pydantic) is taken from PYTHONPATH. A job is started with mock data, and ranks of it are killed in turn, as
many as every stage has servers to spare; they come back meanwhile. When it has ended, its losses are compared with
those of stock Megatron, and stock Megatron goes on from every checkpoint at another size, to a loss that is compared.

A third of the kills comes in a save (of format torch_dist, torch, and torch_dist with --async-save in turn), a third
in an evaluation or in what is logged after an iteration, and a third at any moment. With ``-o FOLDER`` every kill is
a line of ``kills.jsonl`` there; started again with the same folder, the benchmark goes on where it was broken off.

``--job experts`` and ``--job tensor`` have eight ranks and servers of two, of which one dies with its server: experts
that alltoall reaches, and tensor with sequence parallelism. Their runs are short, with two kills in each, and write
checkpoints without and with --async-save in turn; stock Megatron goes on from these with half the ranks.
``--kinds save --trials 4`` is a run of each.
"""

import argparse
import json
import os
import random
import runpy
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.interrupted import until_interrupted
from benchmarks.outside import Hit, JobProcess, OutsideKiller

EVALUATION, SAVE = 4, 15
SIZE = (
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 2 --global-batch-size 24 --pipeline-model-parallel-size 2 --lr 1e-4 --lr-decay-style constant "
    "--split 90,8,2 --vocab-size 255 --make-vocab-size-divisible-by 1 --tokenizer-type NullTokenizer --mock-data "
    "--hidden-dropout 0 --attention-dropout 0 --log-interval 1 --timing-log-level 1 --num-workers 0 "
    f"--eval-interval {EVALUATION} --eval-iters 3"
)
FLAG = "--pipeline-schedule recycle --recycle-budget 500ms --recycle-restarts 100"
FORMATS = {
    "torch_dist": "--ckpt-format torch_dist",
    "torch": "--ckpt-format torch",
    "async": "--ckpt-format torch_dist --async-save",
}
KINDS = ("save", "evaluation", "any", "save", "logging", "any")
ALLOWED = 1e-6


class KilledJob(NamedTuple):
    """A job in which ranks are killed, in two stages.

    Attributes:
        words: what it is told beside ``SIZE``.
        pipelines: of the plan.
        ranks: of each server.
        planned: the iterations for which data is made.
        iterations: after which it exits.
        together: kills in one run.
        resumed: the formats of its checkpoints, and with each how many ranks resume from them, and what these are told.
    """

    words: str
    pipelines: int
    ranks: int
    planned: int
    iterations: int
    together: int
    resumed: Mapping[str, tuple[int, str]]

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return 2 * self.pipelines * self.ranks

    @property
    def servers(self) -> dict[str, list[int]]:
        """The ranks of each server, in Megatron's usual order."""
        size = self.ranks
        return {
            f"W{number % self.pipelines}_{number // self.pipelines}": list(range(number * size, (number + 1) * size))
            for number in range(2 * self.pipelines)
        }


ALONE = (1, "--pipeline-model-parallel-size 1")
HALF = {"torch_dist": (4, ""), "async": (4, "")}
JOBS = {
    # What format torch has written can be cut no other way.
    "gpt": KilledJob("", 3, 1, 120, 60, 8, {"torch_dist": ALONE, "torch": (2, ""), "async": ALONE}),
    "experts": KilledJob(
        "--num-experts 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall --disable-bias-linear",
        *(2, 2, 45, 30, 2, HALF),
    ),
    "tensor": KilledJob("--tensor-model-parallel-size 2 --sequence-parallel", 2, 2, 45, 30, 2, HALF),
}


class KillLine(msgspec.Struct, frozen=True):
    """What became of a kill.

    Attributes:
        release: of Megatron.
        job: the name of the job.
        run: of it, counted from 0.
        format: of its checkpoints.
        kind: in the middle of what.
        rank: that was killed.
        server: that died with it.
        seen: what could be seen when it was killed.
        seconds: until a line said that training goes on.
        survived: whether the run came to its end with status 0.
        apart: by how much its losses are from stock Megatron's at most, relative.
        loaded: the run's checkpoints from which stock Megatron goes on with stock's loss.
        missed: those from which it does not.
        returns: how many servers of the run came back.
        load: of the machine.
    """

    release: str
    job: str
    run: int
    format: str
    kind: str
    rank: int
    server: str
    seen: str
    seconds: float | None
    survived: bool
    apart: float | None
    loaded: tuple[int, ...]
    missed: tuple[int, ...]
    returns: int
    load: float

    @property
    def kept(self) -> bool:
        """Whether nothing was lost by it."""
        return self.survived and self.apart is not None and self.apart <= ALLOWED and not self.missed


def release_of(tree: Path) -> str:
    """The release of a source tree."""
    return str(runpy.run_path(str(tree / "megatron" / "core" / "package_info.py"))["__version__"])


def words_of(tree: Path, job: KilledJob, *more: str) -> list[str]:
    """The command line of Megatron's script."""
    words = f"{SIZE} --train-iters {job.planned} {job.words} {' '.join(more)}"
    return ["-m", "recycle.megatron", "--on-cpu", str(tree / "pretrain_gpt.py"), *words.split()]


def found_losses(output: str) -> dict[str, float]:
    """The losses that a job has printed, of iterations by their numbers, and of evaluations."""
    from harness.flag_runs import printed

    read = printed(output)
    found = {number: loss for number, (loss, _) in read.trained.items()}
    return {str(name): float(loss) for name, loss in (found | read.evaluated).items()}


def before(losses: Mapping[str, float], iterations: int) -> dict[str, float]:
    """Those of a job that exits after some iterations."""
    found = {name: int(name.split()[1]) if " " in name else int(name) for name in losses if "set" not in name}
    return {name: losses[name] for name, number in found.items() if number <= iterations}


def reference(tree: Path, job: KilledJob, path: Path) -> dict[str, float]:
    """The losses of stock Megatron, which nobody disturbs; kept in a file."""
    if not path.exists():
        with tempfile.TemporaryDirectory() as temporary:
            jobs = [(job.world, words_of(tree, job, f"--exit-interval {job.iterations + 1}"))]
            ((status, said),) = JobProcess(jobs, Path(temporary)).follow(None)
        losses = found_losses(said)
        if status or str(job.iterations + 1) not in losses:
            sys.exit(f"stock Megatron does not come to its end:\n{said[-6000:]}")
        path.write_text(json.dumps(losses))
    return {str(name): float(loss) for name, loss in json.loads(path.read_text()).items()}


def apart(found: Mapping[str, float], expected: Mapping[str, float]) -> float:
    """By how much losses are apart at most, relative."""
    return max(abs(found[name] - loss) / abs(loss) for name, loss in expected.items())


class KilledRun(NamedTuple):
    """A run in which ranks were killed.

    Attributes:
        name: of the job.
        number: of the run, counted from 0.
        format: of its checkpoints.
        saved: where they are.
        status: with which it has ended.
        said: what it has printed.
        hits: who was killed.
        returns: how many servers came back.
        load: of the machine.
    """

    name: str
    number: int
    format: str
    saved: Path
    status: int
    said: str
    hits: list[Hit]
    returns: int
    load: float


def kill_ranks(tree: Path, name: str, number: int, kinds: Sequence[str], seed: int, folder: Path) -> KilledRun:
    """Run a job and kill ranks of it.

    Args:
        tree: of Megatron.
        name: of the job.
        number: of the run.
        kinds: in the middle of what ranks are killed.
        seed: of victims and moments.
        folder: for its checkpoints.
    """
    from harness.flag_runs import agents
    from harness.processes import children

    job, source = JOBS[name], random.Random(f"{seed}-{number}")
    # Not always the same one with the same kinds.
    style = list(job.resumed)[(number + number // len(job.resumed)) % len(job.resumed)]
    saved = folder / "saved"
    saves = f"--save {saved} --save-interval {SAVE} {FORMATS[style]}"
    process = JobProcess([(job.world, words_of(tree, job, FLAG, saves, f"--exit-interval {job.iterations}"))], folder)

    def find(rank: int) -> int:
        (worker,) = children(agents(process.process.pid)[rank])
        return worker

    killer = OutsideKiller(kinds, job.servers, find, saved, EVALUATION, source)
    ((status, said),) = process.follow(killer)
    return KilledRun(
        name, number, style, saved, status, said, killer.hits, killer.returns, round(os.getloadavg()[0], 1)
    )


def judge(tree: Path, run: KilledRun, expected: Mapping[str, float], logs: Path) -> list[KillLine]:
    """Compare a run's losses, and go on from each of its checkpoints with stock Megatron.

    Args:
        tree: of Megatron.
        run: which.
        expected: the losses of stock Megatron.
        logs: where the output of a run lands that has lost something.
    """
    job = JOBS[run.name]
    steps = range(SAVE, job.iterations + 1, SAVE)
    ranks, words = job.resumed[run.format]
    loads = f"--load {run.saved} {FORMATS[run.format].replace('--async-save', '')} {words}"
    jobs = [(ranks, words_of(tree, job, loads, f"--ckpt-step {step} --exit-interval {step + 1}")) for step in steps]
    resumed = JobProcess(jobs, run.saved.parent).follow(None)
    losses = found_losses(run.said)
    due = before(expected, job.iterations)
    is_whole = losses.keys() >= due.keys()
    loaded = []
    for step, (ended, text) in zip(steps, resumed, strict=False):
        name, goes_on = str(step + 1), found_losses(text)
        if not ended and name in goes_on and apart(goes_on, {name: expected[name]}) <= ALLOWED:
            loaded.append(step)
    rows = [
        KillLine(
            *(release_of(tree), run.name, run.number, run.format, *hit),
            *(run.status == 0 and is_whole and hit.seconds is not None, apart(losses, due) if is_whole else None),
            loaded=tuple(loaded),
            missed=tuple(step for step in steps if step not in loaded),
            returns=run.returns,
            load=run.load,
        )
        for hit in run.hits
    ]
    if not rows or not all(row.kept for row in rows):
        log = logs / f"{release_of(tree)}-{run.name}-{run.number}.log"
        log.write_text("\n".join([run.said, *(text for _, text in resumed)]))
        print(f"run {run.number}: what it printed is in {log}", flush=True)
    return rows


def describe(row: KillLine) -> str:
    """A line for a kill."""
    seconds = "nobody said so" if row.seconds is None else f"{row.seconds:.2f} s"
    losses = "not whole" if row.apart is None else f"{row.apart:.1e}"
    loads = f"{len(row.loaded)} of {len(row.loaded) + len(row.missed)}"
    return (
        f"| {row.release} | {row.job} | {row.run} | {row.format} | {row.kind} | {row.rank} | {row.seen} | {seconds} | "
        f"{'yes' if row.survived else 'NO'} | {losses} | {loads} | {row.load} |"
    )


def summary(rows: Sequence[KillLine]) -> str:
    """What all kills together show."""
    kinds, formats = Counter(row.kind for row in rows), Counter(row.format for row in rows if row.kind == "save")
    runs = {(row.release, row.job, row.run): row for row in rows}.values()
    worst = max((row.apart for row in rows if row.apart is not None), default=0.0)
    back = sum(row.returns for row in runs)
    return (
        f"{sum(row.survived for row in rows)} of {len(rows)} kills survived: "
        f"{', '.join(f'{count} in {kind}' for kind, count in sorted(kinds.items()))}; of those in a save "
        f"{', '.join(f'{count} {style}' for style, count in sorted(formats.items()))}; losses within {worst:.1e} of "
        f"stock's, {sum(len(row.loaded) for row in runs)} of {sum(len(row.loaded + row.missed) for row in runs)} "
        f"checkpoints go on in stock; {back} servers came back; load {os.getloadavg()[0]:.1f}"
    )


def read_lines(path: Path, release: str, name: str) -> list[KillLine]:
    """The kills of a release and a job that were made before; a line that is half there is none."""
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    rows = [msgspec.json.decode(line, type=KillLine) for line in lines]
    return [row for row in rows if (row.release, row.job) == (release, name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tree", type=Path, help="a source tree of Megatron-LM, with its data helpers")
    parser.add_argument("--trials", type=int, default=30, help="kills")
    parser.add_argument("--job", choices=list(JOBS), default="gpt")
    parser.add_argument("--kinds", choices=sorted(set(KINDS)), nargs="+", default=KINDS, help="in turn; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="the folder to keep what was found in, and to go on from")
    arguments = parser.parse_args()
    tree = arguments.tree.resolve()
    # The parent of all ranks imports that release, and not one that is installed.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as temporary, until_interrupted():
        folder = arguments.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path, release = folder / "kills.jsonl", release_of(tree)
        expected = reference(tree, JOBS[arguments.job], folder / f"{release}-{arguments.job}.json")
        rows = read_lines(path, release, arguments.job)
        while len(rows) < arguments.trials:
            run = max((row.run for row in rows), default=-1) + 1
            numbers = range(len(rows), min(arguments.trials, len(rows) + JOBS[arguments.job].together))
            kinds = [arguments.kinds[number % len(arguments.kinds)] for number in numbers]
            with tempfile.TemporaryDirectory() as work:
                killed = kill_ranks(tree, arguments.job, run, kinds, arguments.seed, Path(work))
                made = judge(tree, killed, expected, folder)
            if not made:
                break
            with path.open("ab") as file:
                for row in made:
                    file.write(msgspec.json.encode(row) + b"\n")
                    print(describe(row), flush=True)
            rows += made
        print(summary(rows))
        return int(len(rows) < arguments.trials or not all(row.kept for row in rows))
    return 1  # type: ignore[unreachable]  # after an interrupt


if __name__ == "__main__":
    sys.exit(main())
