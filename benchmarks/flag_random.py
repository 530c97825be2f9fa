"""Random runs of a Megatron script under the flag: settings, rejected results and deaths, against stock Megatron.

Usage: PYTHONPATH=.megatron-0.17.1 python -m benchmarks.flag_random [--runs 50] [--seed S] [--only N] [--each-server]

Each run draws its settings, the iterations whose results Megatron's rerun engine rejects, and when which workers are
killed; each is started again and comes back. What the flag refuses is not drawn. Stock Megatron trains with the same
settings and the same rejected results, and without a death. Every line of an iteration and every evaluation has to say
the same: losses, norms, learning rates, and samples. A run that prints nothing for four minutes stands still.

With ``--each-server`` runs of 3 x 3 servers are in turn plain and with virtual stages, and each server dies and comes
back once, in an order that is drawn: three deaths in each stage.

Every run of a seed can be had again alone: ``--seed S --only N``. Moments are those of a clock, so it may go otherwise.
Where a run fails, what it printed is in ``run-N.log`` of the folder that ``-o`` names.
"""

import argparse
import math
import operator
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.shared import until_interrupted
from harness.flag_runs import (
    STANDSTILL,
    Kills,
    Moment,
    Printed,
    follow,
    fork,
    losses,
    make_dataset,
    missing,
    norms,
    printed,
    returns,
    words_of,
)

PATIENCE, SAVED, APART = 240.0, 2, 2
"""Seconds without a line that are a standstill, the iteration of the checkpoint from which virtual stages begin, and
iterations from one server's death to the next one's where each dies once."""
CALM = ("--lr", "2e-3", "--min-lr", "2e-4", "--lr-decay-style", "linear", "--lr-warmup-fraction", "0.2")
FLAG = ("--pipeline-schedule", "recycle", "--recycle-budget", "500ms", "--recycle-restarts", "100")
KEPT = ("--recycle-keep-in-memory", "copies=1")
MODEL = (
    "--swiglu; --disable-bias-linear; --untie-embeddings-and-output-weights; --qk-layernorm; --clip-grad 0.2; "
    "--position-embedding-type rope --no-rope-fusion; --group-query-attention --num-query-groups 2; "
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1; --calculate-per-token-loss; "
    "--weight-decay 0.1; --log-params-norm; --log-num-zeros-in-grad; --mtp-num-layers 1; "
    "--decoupled-lr 1e-3 --decoupled-min-lr 1e-4; --account-for-embedding-in-pipeline-split; --eval-iters 2; "
    "--lr-decay-style cosine; --empty-unused-memory-level 1"
)
TENSORS = "--tensor-model-parallel-size", "2"
EXPERTS = "--sequence-parallel", "--expert-model-parallel-size", "2", "--expert-tensor-parallel-size", "1"
DIVIDED = TENSORS, (*TENSORS, "--sequence-parallel"), ("--context-parallel-size", "2"), (*TENSORS, *EXPERTS)
"""How the two ranks of a server divide its work; where there are experts, by the second or the last way."""
VIRTUAL = ("--num-layers-per-virtual-pipeline-stage", "1")
OVERLAPS = ("--overlap-grad-reduce", "--overlap-param-gather", "--ddp-bucket-size", "4000")
ALLOWED_LOSS, ALLOWED_NORM = 1e-5, 5e-3
"""By how much a loss may be apart, relative, and a norm, of which three digits are printed."""
TOO_LATE = re.compile(r"the run has ended before (W\d+_\d+)#\d+ was back")
"""A server that was killed when nothing was left to be trained."""
COUNTED = re.compile(
    r"iteration +(\d+)/ *\d+ \| (consumed samples: +\d+) .*?(learning rate: \S+) .*?(batch size: +\d+)"
)


class Drawn(NamedTuple):
    """A run that was drawn.

    Attributes:
        pipelines: how many.
        stages: of each.
        size: how many ranks a server has.
        stock: what stock Megatron is told as well.
        ours: what is told under the flag alone.
        iterations: how many there are; None where that follows from the batches.
        rejected: iterations whose results are rejected.
        pace: seconds that an iteration takes while a server is away; empty where all wait until it is back.
        moments: when which ranks are killed.
    """

    pipelines: int
    stages: int
    size: int
    stock: tuple[str, ...]
    ours: tuple[str, ...]
    iterations: int | None
    rejected: tuple[int, ...]
    pace: str
    moments: tuple[Moment, ...]

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.pipelines * self.stages * self.size

    @property
    def begins_from_checkpoint(self) -> bool:
        """Whether it begins from one without virtual stages: with them, parameters begin otherwise.

        The flag has written it: stock Megatron writes wrong values into some of this format.
        """
        return VIRTUAL[0] in self.ours

    def __str__(self) -> str:
        pace = f"{self.pace} s an iteration" if self.pace else "waiting for returns"
        said = (f"{self.pipelines} x {self.stages}", " ".join((*self.stock, *self.ours)))
        return "; ".join((*said, f"rejected {list(self.rejected)}", pace, f"kills {' '.join(map(str, self.moments))}"))


def draw(source: random.Random) -> Drawn:
    """A run that the flag does not refuse."""
    while is_refused(drawn := draw_any(source)):
        pass
    return drawn


def draw_each_server(source: random.Random, number: int) -> Drawn:
    """A run of 3 x 3 servers, each of which dies once: in turn plain, and with virtual stages."""
    pipelines = stages = 3
    ranks = source.sample(range(pipelines * stages), pipelines * stages)
    moments = tuple(Moment(SAVED + 1 + APART * place, ((rank, 0.0),)) for place, rank in enumerate(ranks))
    stock = (
        *("--pipeline-model-parallel-size", str(stages), "--num-layers", str(2 * stages), *CALM),
        *("--global-batch-size", str(2 * pipelines * stages)),
    )
    # A death waits until the servers that died before are back, and so comes later than it was drawn.
    length = moments[-1].after + 8 * APART
    return Drawn(pipelines, stages, 1, stock, (*FLAG, *VIRTUAL) if number % 2 else FLAG, length, (), "", moments)


def draw_any(source: random.Random) -> Drawn:
    """Any run."""

    def perhaps(share: float, *words: object) -> tuple[str, ...]:
        return tuple(map(str, words)) if source.random() < share else ()

    pipelines, stages = source.choice((2, 2, 3)), source.choice((2, 3))
    virtual, kept = perhaps(0.25, *VIRTUAL), perhaps(0.5, *KEPT)
    at_once = pipelines * 2
    batch = at_once * source.choice((2, 4))
    size = source.choice((1, 1, 2)) if pipelines * stages < 9 else 1
    experts = perhaps(0.25, "--num-experts", 4, "--disable-bias-linear")
    divided = source.choice(DIVIDED[1::2] if experts else DIVIDED[:3]) if size > 1 else ()
    model = (word for each in MODEL.split("; ") if source.random() < 0.2 for word in each.split())
    pace = source.choice(("", "", "0.3"))
    length = 40 if pace else 18
    grows = perhaps(0.2, "--rampup-batch-size", at_once, at_once, 8 * at_once)
    grows += ("--train-samples", str(batch * length - 8 * at_once)) if grows else ()
    skipped = sorted(source.sample(range(3, 12), source.choice((1, 2))))
    stock = (
        *("--pipeline-model-parallel-size", str(stages), "--num-layers", str(stages * 2), *CALM),
        *("--global-batch-size", str(batch), *grows, "--eval-interval", str(source.choice((3, 4, 5, 100)))),
        *perhaps(0.4, "--use-distributed-optimizer", *perhaps(0.6, *OVERLAPS)),
        *perhaps(0.2, "--iterations-to-skip", *skipped),
        *(*model, *experts, *divided),
    )
    # Those with virtual stages begin from a checkpoint, and Megatron saves in no other format than it loads.
    styles = ("torch_dist",) if virtual else ("torch", "torch_dist")
    saves = perhaps(0.4, "--save-interval", source.choice((3, 4, 5)), "--ckpt-format", source.choice(styles))
    exact = perhaps(0.15, "--recycle-exact")
    ours = (*FLAG, *virtual, *kept, *perhaps(0.4, "--recycle-stagger"), *exact, *saves)
    rejected = tuple(sorted(source.sample(range(3, 12), source.choice((0, 0, 1, 2)))))
    moments = tuple(draw_moments(source, pipelines, stages, size, bool(kept)))
    return Drawn(pipelines, stages, size, stock, ours, None if grows else length, rejected, pace, moments)


def draw_moments(source: random.Random, pipelines: int, stages: int, size: int, kept: bool) -> Iterator[Moment]:
    """One death, two in different stages of which the second may be late, or a whole stage where its state is kept."""
    after = SAVED
    for _ in range(source.choice((1, 1, 2, 2, 3))):
        after += source.randint(1, 4)
        kind = source.choice(("one", "one", "two", "stage" if kept else "one"))
        first, *others = source.sample(range(stages), stages)
        delay = source.uniform(0, 0.3)
        deaths = {first * pipelines + source.randrange(pipelines): delay}
        if kind == "two":
            late = delay + source.choice((0.0, source.uniform(0, 3)))
            deaths[others[0] * pipelines + source.randrange(pipelines)] = late
        elif kind == "stage":
            deaths = {first * pipelines + pipeline: delay for pipeline in range(pipelines)}
        yield Moment(after, tuple((rank * size + source.randrange(size), round(s, 3)) for rank, s in deaths.items()))


def is_refused(drawn: Drawn) -> bool:
    """Whether the flag refuses it, or this release of Megatron does not read all of it."""
    from recycle.cli.diagnosis import diagnose
    from recycle.megatron.flag.command.command_line import read_command_line
    from recycle.megatron.flag.command.megatron_options import choose_release

    words = words_of(Path("text"), *drawn.stock, *drawn.ours, "--save", "saved", iterations=drawn.iterations)
    diagnosis = diagnose(read_command_line(words, drawn.ranks), None, choose_release(None))
    return bool(diagnosis.refused or diagnosis.unread or diagnosis.ignored)


class Runs:
    """Runs of the flag and of stock Megatron; what stock says is kept where its settings come again.

    Args:
        folder: for data and checkpoints.
        logs: for what failed runs have printed.
    """

    def __init__(self, folder: Path, logs: Path) -> None:
        self._folder = folder
        self._logs = logs
        self._dataset = make_dataset(folder / "text")
        self._known: dict[tuple[object, ...], tuple[Printed, Path]] = {}

    def stock(self, drawn: Drawn) -> tuple[Printed, Path]:
        """What stock Megatron says, and the folder of the checkpoint from which it has begun."""
        key = (drawn.ranks, drawn.begins_from_checkpoint, drawn.iterations, drawn.rejected, drawn.stock)
        if key not in self._known:
            saved = self._folder / f"stock-{len(self._known)}"
            loads: tuple[object, ...] = ()
            if drawn.begins_from_checkpoint:
                reshardable = "--dist-ckpt-optim-fully-reshardable"
                saves = ("--save", saved, "--save-interval", SAVED, "--exit-interval", SAVED, reshardable)
                self._train(drawn, *FLAG, *saves)
                loads = ("--load", saved)
            self._known[key] = self._train(drawn, *loads), saved
        return self._known[key]

    def problems(self, number: int, drawn: Drawn) -> list[str]:
        """Run it under the flag; gives what is wrong with it."""
        stock, begins = self.stock(drawn)
        slow, saved = self._folder / f"slow-{number}", self._folder / f"saved-{number}"
        loads = ("--load", begins, "--dist-ckpt-optim-fully-reshardable") if drawn.begins_from_checkpoint else ()
        kills = Kills(drawn.moments, drawn.pipelines, slow, drawn.size)
        saves = ("--save", saved) if "--save-interval" in drawn.ours else ()
        status, said = self._run(drawn, *drawn.ours, *saves, *loads, slow=slow, watch=kills)
        found = printed(said)
        problems = [*differences(stock, found)]
        away = Counter(kills.killed) - Counter(returns(found)) - Counter(TOO_LATE.findall(said))
        if away and not (drawn.pace and status == 0):
            problems.append(f"{', '.join(away)} did not come back")
        if status:
            ended = "standstill" if said.endswith(STANDSTILL) else f"status {status}"
            problems.append(f"{ended} after iteration {max(found.trained, default=0)}")
        if problems:
            (self._logs / f"run-{number}.log").write_text(f"{drawn}\n{said}")
        return problems

    def _train(self, drawn: Drawn, *more: object) -> Printed:
        status, said = self._run(drawn, *more)
        if status:
            sys.exit(f"stock Megatron does not come to its end, {drawn}:\n{said[-6000:]}")
        return printed(said)

    def _run(
        self,
        drawn: Drawn,
        *more: object,
        slow: Path | None = None,
        watch: Callable[..., object] = lambda started, output: None,
    ) -> tuple[int, str]:
        told = {"PACE": str(slow or self._folder / "none"), "REJECT": ",".join(map(str, drawn.rejected))}
        told |= {"PACE_SECONDS": drawn.pace} if drawn.pace else {}
        script, words = "rejecting_gpt.py", (*drawn.stock, *more)
        job = fork(self._dataset, *words, ranks=drawn.ranks, iterations=drawn.iterations, script=script, told=told)
        with job as started:
            said = follow(started, watch, PATIENCE)
        return job.wait(), said


def differences(stock: Printed, found: Printed) -> Iterator[str]:
    """What a run says otherwise than stock Megatron, a line for each kind."""
    yield from _differences("loss", losses(stock), losses(found), partial(math.isclose, rel_tol=ALLOWED_LOSS))
    yield from _differences("norm", norms(stock), norms(found), partial(math.isclose, rel_tol=0, abs_tol=ALLOWED_NORM))
    yield from _differences("line", _counted(stock.output), _counted(found.output), operator.eq)


def _differences(
    kind: str, expected: Mapping[Any, Any], found: Mapping[Any, Any], is_same: Callable[[Any, Any], bool]
) -> Iterator[str]:
    lacks = [key for key in expected if key not in found]
    wrong = [key for key in found if key not in expected or not is_same(expected[key], found[key])]
    if lacks:
        yield f"no {kind} of {len(lacks)}, first {lacks[0]}"
    if wrong:
        said = f"{found[wrong[0]]} for {expected.get(wrong[0])}"
        yield f"{kind} differs in {len(wrong)} of {len(found)}, first {wrong[0]}: {said}"


def _counted(output: str) -> dict[int, tuple[str, ...]]:
    return {int(number): tuple(rest) for number, *rest in COUNTED.findall(output)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="default: any, which is printed")
    parser.add_argument("--only", type=int, metavar="N", help="run N of the seed alone")
    parser.add_argument("--each-server", action="store_true", help="each server of 3 x 3 dies once; plain and virtual")
    parser.add_argument("-o", "--output", type=Path, default=Path(), help="the folder for what failed runs printed")
    arguments = parser.parse_args()
    if missing:
        print(f"{', '.join(missing)} are not installed: scripts/develop does, in .megatron-0.17.1", file=sys.stderr)
        return 2
    numbers = range(arguments.runs) if arguments.only is None else [arguments.only]
    arguments.output.mkdir(parents=True, exist_ok=True)
    failed: list[int] = []
    done = 0
    with tempfile.TemporaryDirectory() as folder, until_interrupted():
        runs = Runs(Path(folder), arguments.output)
        for number in numbers:
            source, began = random.Random(f"{arguments.seed}-{number}"), time.monotonic()
            drawn = draw_each_server(source, number) if arguments.each_server else draw(source)
            problems = runs.problems(number, drawn)
            failed += [number] if problems else []
            done += 1
            verdict = "; ".join(problems) or "equal"
            print(
                f"--seed {arguments.seed} --only {number}: {verdict} ({time.monotonic() - began:.0f} s; {drawn})",
                flush=True,
            )
    which = f": {', '.join(map(str, failed))}" if failed else ""
    print(f"seed {arguments.seed}: {len(failed)} of {done} runs failed{which}; load {os.getloadavg()[0]:.1f}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
