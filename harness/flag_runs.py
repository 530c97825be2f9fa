"""A user's training script, run with and without the flag by torchrun, or by what stands in for it."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from harness.forked import TRAINING_CODE, Forked
from harness.paths import python_path
from harness.plain_lines import require_plain
from harness.processes import children, environment, send_signal
from recycle.megatron.flag.command.on_cpu import settings_for_cpu
from recycle.megatron.gpt.text import standard_library
from recycle.megatron.shared.cpu import run_on_cpu

SCRIPT = Path(__file__).parent / "scripts" / "pretrain_small_gpt.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
"""Starts as many ranks as the next word says."""
FLAGGED = ("-m", "recycle.megatron")
NEEDED = ("megatron.training", "yaml", "six", "regex", "pydantic")


def place(module: str) -> Path | None:
    """The folder that a module is found in; None where there is none."""
    found = importlib.util.find_spec(module)
    return None if found is None else Path(str(found.origin)).parent


def is_missing(module: str) -> bool:
    """Whether training code cannot import a module. What another release has of Megatron's does not count."""
    core = place("megatron.core")
    assert core is not None
    found = place(module)
    return found is None or (module == NEEDED[0] and found.parent != core.parent)


missing = [name for name in NEEDED if is_missing(name)]
needs_training = pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} are not installed: scripts/test does")

SIZE = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 2 --global-batch-size 16 --pipeline-model-parallel-size 2 --lr 3e-3 --lr-decay-style constant "
    "--split 90,8,2 --vocab-size 255 --make-vocab-size-divisible-by 2 --tokenizer-type NullTokenizer "
    "--hidden-dropout 0 --attention-dropout 0 --log-interval 1 --eval-interval 4 --eval-iters 1 --num-workers 0"
)
TRAINED = re.compile(r"iteration +(\d+)/ *\d+ .*?lm loss: (\S+) .*?grad norm: (\S+)")
STANDSTILL = "the run came to a standstill and was ended\n"
EVALUATED = re.compile(r"validation loss at (iteration \d+[a-z ]*)\| lm loss value: (\S+)")


class Printed(NamedTuple):
    """What a run has printed, to the digit.

    Attributes:
        trained: loss and gradient norm by iteration.
        evaluated: loss by what it was measured on.
        output: all of it.
    """

    trained: dict[int, tuple[str, str]]
    evaluated: dict[str, str]
    output: str


def make_dataset(prefix: Path) -> Path:
    """An indexed dataset of Megatron's, whose tokens are the bytes of Python's standard library."""
    run_on_cpu()
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin")
    text = standard_library()[:400_000]
    for start in range(0, len(text), 10_000):
        document = torch.tensor(list(text[start : start + 10_000]))
        builder.add_document(document, [len(document)])
    builder.finalize(f"{prefix}.idx")
    return prefix


VARIABLES = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def words_of(dataset: Path, *arguments: object, iterations: int | None = 8, script: str = SCRIPT.name) -> list[str]:
    """A script and its arguments; without a number of iterations, they say how long it trains."""
    length = () if iterations is None else ("--train-iters", iterations)
    words = [*SIZE.split(), *settings_for_cpu([]), "--data-path", dataset, *length, *arguments]
    return [str(SCRIPT.with_name(script)), *map(str, words)]


def launch(
    dataset: Path,
    *arguments: object,
    ranks: int = 4,
    iterations: int | None = 8,
    start: Sequence[object] = FLAGGED,
    script: str = SCRIPT.name,
    told: Mapping[str, str] | None = None,
) -> "subprocess.Popen[str]":
    """Begin to run a script by torchrun; what it prints can be read, and it is told something in its environment."""
    words = words_of(dataset, *arguments, iterations=iterations, script=script)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *TORCHRUN, str(ranks), *map(str, start), *words],
        env=variables() | dict(told or {}),
        cwd=Path(dataset).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def fork(
    dataset: Path,
    *arguments: object,
    ranks: int = 4,
    iterations: int | None = 8,
    start: Sequence[object] = FLAGGED,
    script: str = SCRIPT.name,
    told: Mapping[str, str] | None = None,
) -> Forked:
    """The same without torchrun, for less of the processor's time."""
    words = words_of(dataset, *arguments, iterations=iterations, script=script)
    start = ("-m", "harness.scripts.forked_ranks", ranks, *start)
    return Forked([*map(str, start), *words], variables() | dict(told or {}), Path(dataset).parent, TRAINING_CODE)


def variables() -> dict[str, str]:
    """Those of a run's processes."""
    return os.environ | VARIABLES | {"PYTHONPATH": python_path()}


Job = Forked | subprocess.Popen[str]
Watch = Callable[[Job, str], object]


def train(
    dataset: Path,
    *arguments: object,
    watch: Watch = lambda started, output: None,
    launcher: Callable[..., Job] = fork,
    patience: float | None = None,
    told: Mapping[str, str] | None = None,
    accidents: str = "",
    **settings: object,
) -> Printed:
    """Run a script; fails where it fails.

    Args:
        watch: called with the launcher's process and what was printed so far, whenever something is printed.
        launcher: who starts its ranks.
        patience: seconds without a line after which a forked run has come to a standstill, and is ended.
        told: variables of the script's environment.
        accidents: that happen on its ranks; see accident_prone_gpt.py, which is the script where none is named.
    """
    kills = {"KILLS": str(watch.due)} if isinstance(watch, Killing) else {}
    if accidents:
        settings = {"script": "accident_prone_gpt.py", **settings}
        kills |= {"ACCIDENTS": accidents}
    with launcher(dataset, *arguments, told={**(told or {}), **kills}, **settings) as started:
        output = follow(started, watch, patience)
    assert started.returncode == 0, output[-8000:]
    require_plain(*(line for line in output.splitlines() if "recycle: " in line))
    return printed(output)


def follow(started: Job, watch: Watch, patience: float | None = None) -> str:
    """Read what a run prints until it ends; see ``train``. The last line is ``STANDSTILL`` where it was ended."""
    heard, ended = threading.Event(), threading.Event()

    def wait_for_lines() -> None:
        while heard.wait(patience) and not ended.is_set():
            heard.clear()
        if not ended.is_set():
            assert isinstance(started, Forked)
            started.kill_all()

    watchdog = threading.Thread(target=wait_for_lines, daemon=True)
    watchdog.start()
    output = ""
    assert started.stdout is not None
    for line in started.stdout:
        heard.set()
        output += line
        watch(started, output)
    stood_still = not watchdog.is_alive()
    ended.set()
    heard.set()
    return output + STANDSTILL if stood_still else output


def printed(output: str) -> Printed:
    """What can be found in all that a run has printed."""
    return Printed(
        {int(number): (loss, norm) for number, loss, norm in TRAINED.findall(output)},
        {where.strip(): loss for where, loss in EVALUATED.findall(output)},
        output,
    )


def losses(printed: Printed) -> dict[tuple[str, int | str], float]:
    """The losses that a run has printed, of its iterations and of its evaluations."""
    trained = {("trained", number): float(loss) for number, (loss, _) in printed.trained.items()}
    return trained | {("evaluated", where): float(loss) for where, loss in printed.evaluated.items()}


def nearly(printed: Printed) -> dict[tuple[str, int | str], Any]:
    """The same, where the last printed digit depends on the order in which gradients were added."""
    return {key: pytest.approx(loss, rel=1e-6) for key, loss in losses(printed).items()}


def norms(printed: Printed) -> dict[int, float]:
    """The norms of gradients that a run has printed, by iteration."""
    return {number: float(norm) for number, (_, norm) in printed.trained.items()}


def deaths(printed: Printed) -> list[str]:
    """The servers of one rank that a run has printed to be killed, in turn."""
    views = re.findall(r"recycle: (.*); training goes on with", printed.output)
    # Where a second one dies before there is a view without the first, both are in one line.
    return re.findall(r"(W\d_\d) was killed by signal 9 \(SIGKILL\)", "\n".join(views))


def returns(printed: Printed) -> list[str]:
    """The servers that a run has printed to be back, in turn."""
    lines = re.findall(r"training goes on with \d+ servers, (.*?) among them again", printed.output)
    return [server for line in lines for server in line.split(", ")]


class Killing:
    """See ``kill``.

    Attributes:
        due: a file that is there until all are killed. So long the script does not begin its last iteration: a run must
            not be over before this process has read how far it is.
    """

    def __init__(self, moments: Sequence[tuple[int, int, float]]) -> None:
        self._left = list(moments)
        self._alive = [rank for rank, _, _ in moments]
        number, name = tempfile.mkstemp(prefix="kills-")
        os.close(number)
        self.due = Path(name)

    def __call__(self, launcher: Job, output: str) -> None:
        done = max((int(number) for number, _, _ in TRAINED.findall(output)), default=0)
        together: dict[float, list[int]] = {}
        for moment in [each for each in self._left if each[1] <= done]:
            self._left.remove(moment)
            rank, _, delay = moment
            (worker,) = children(agents(launcher.pid)[rank])
            together.setdefault(delay, []).append(worker)
        for delay, workers in together.items():
            threading.Timer(delay, self._kill, (workers,)).start()

    def _kill(self, workers: Sequence[int]) -> None:
        for worker in workers:
            send_signal(worker, signal.SIGKILL)
            self._alive.pop()
        if not self._alive:
            self.due.unlink(missing_ok=True)


def kill(moments: Sequence[tuple[int, int, float]]) -> Killing:
    """Kill workers: each with the iteration after which, and how many seconds after that was printed.

    Those of the same moment are killed in one step: with a few hundredths of a second between them, the first one's
    peers may have done without it before the second one dies.
    """
    return Killing(moments)


def kill_in_turn(
    ranks: Sequence[int], slow: Path, apart: int = 3, say: Callable[[str], None] = lambda text: None
) -> Watch:
    """Kill workers that come back: each next one when the one before is back.

    Args:
        ranks: whose.
        slow: the file that paced_gpt.py looks for; it is there as long as somebody is away.
        apart: iterations that all are there before one is killed.
        say: is told of each that it is back.
    """
    left, away, since, back, killed = list(ranks), 0, 0, 0, 0.0

    def watch(launcher: Job, output: str) -> None:
        nonlocal away, since, back, killed
        done = max((int(number) for number, _, _ in TRAINED.findall(output)), default=0)
        if output.count(" among them again") < away:
            since = done
            return
        if back < away:
            back, seconds = away, time.monotonic() - killed
            say(f"{away} of {len(ranks)}: rank {ranks[away - 1]} is back {seconds:.1f} s after its kill")
        slow.unlink(missing_ok=True)
        if left and done >= since + apart:
            slow.touch()
            (worker,) = children(agents(launcher.pid)[left.pop(0)])
            send_signal(worker, signal.SIGKILL)
            away, since, killed = away + 1, done, time.monotonic()

    return watch


def survive(
    dataset: Path,
    slow: Path,
    victims: Sequence[int],
    *arguments: object,
    apart: int = 3,
    told: Mapping[str, str] | None = None,
    **settings: Any,
) -> Printed:
    """Run a script that is paced by a file, and kill workers that come back; see ``kill_in_turn``."""
    settings = {"script": "paced_gpt.py", **settings}
    told = {"PACE": str(slow), **(told or {})}
    survived = train(dataset, *arguments, told=told, watch=kill_in_turn(victims, slow, apart), **settings)
    assert len(deaths(survived)) == len(victims)
    assert returns(survived) == deaths(survived)
    return survived


class Moment(NamedTuple):
    """When workers are killed.

    Attributes:
        after: the iteration.
        deaths: ranks, and how many seconds after that was printed each dies.
    """

    after: int
    deaths: tuple[tuple[int, float], ...]

    def __str__(self) -> str:
        return f"{self.after}:" + ",".join(f"{rank}+{delay}" for rank, delay in self.deaths)


class Kills:
    """Kills workers that come back; a stage that has lost some loses no others until these are back.

    Args:
        moments: in turn.
        pipelines: of the job.
        slow: the file that paced_gpt.py looks for; it is there as long as a server is away.
        size: how many ranks a server has.

    Attributes:
        killed: the servers, in turn.
    """

    def __init__(self, moments: Sequence[Moment], pipelines: int, slow: Path, size: int = 1) -> None:
        self.killed: list[str] = []
        self._left = list(moments)
        self._pipelines, self._size = pipelines, size
        self._slow = slow
        self._due: list[str] = []

    def __call__(self, launcher: Job, output: str) -> None:
        found = printed(output)
        away = Counter(self._due) - Counter(returns(found))
        if not away:
            self._slow.unlink(missing_ok=True)
        stages = {name.partition("_")[2] for name in away}
        for moment in [each for each in self._left if each.after <= max(found.trained, default=0)]:
            places = {rank: divmod(rank // self._size, self._pipelines) for rank, _ in moment.deaths}
            names = {rank: f"W{pipeline}_{stage}" for rank, (stage, pipeline) in places.items()}
            if stages.isdisjoint(name.partition("_")[2] for name in names.values()):
                self._left.remove(moment)
                self._due += names.values()
                self._slow.touch()
                together: dict[float, dict[int, str]] = {}
                for rank, delay in moment.deaths:
                    together.setdefault(delay, {})[rank] = names[rank]
                for delay, victims in together.items():
                    threading.Timer(delay, self._kill, (launcher, victims)).start()
                return

    def _kill(self, launcher: Job, victims: Mapping[int, str]) -> None:
        with suppress(OSError):  # the run may be over by now
            of = agents(launcher.pid)
            for worker in [children(of[rank])[0] for rank in victims]:
                os.kill(worker, signal.SIGKILL)
            self.killed += victims.values()


def agents(launcher: int) -> dict[int, int]:
    """The processes that a launcher has started, by rank."""
    found: dict[int, int] = {}
    for process in children(launcher):
        rank = environment(process).get("RANK")
        found |= {} if rank is None else {int(rank): process}
    # A forked process keeps its parent's environment there; they are listed in the order in which they were started.
    return found or dict(enumerate(children(launcher)))
