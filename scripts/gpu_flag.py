"""The part of ``scripts/gpu-check`` that runs Megatron's own training code: under the flag, and as it is."""

import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from harness.processes import children, send_signal
from recycle.megatron.flag.command.on_cpu import settings_for_cpu
from recycle.megatron.gpt.model import ModelOptions
from recycle.record.reading import load_recording
from recycle.runtime.device import DeviceKind
from scripts.gpu_profile import StageProfile, job_text, profile
from scripts.gpu_recycle import run_recycle

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "harness" / "scripts" / "pretrain_small_gpt.py"
RANKS, VICTIM, DEATH = 4, 3, 3
"""How many ranks there are under the flag, which of them is killed, and after which iteration."""

ITERATIONS = 10
TIMED, TURNS = {"small": 9, "large": 24}, {"small": 1, "large": 2}
"""Iterations of each run whose time is of interest, and how often each is run, by the size of the model."""

APART = {"cpu": 1e-5, "cuda": 1e-3}
"""How far losses may be from those of another order of the same sums."""

FLAG = ("--pipeline-schedule", "recycle")
MODULE, PLANNED = "recycle.megatron", "scripts.gpu_planned"
SIZES = {
    "small": {"layers": 4, "hidden": 64, "heads": 4, "sequence": 64, "micro_batch_size": 2},
    "large": {"layers": 8, "hidden": 2048, "heads": 16, "sequence": 1024, "micro_batch_size": 2},
}
"""Of the model whose iterations are timed."""

PRINTED = re.compile(r"iteration +(\d+)/.*elapsed time per iteration \(ms\): (\S+).*?lm loss: (\S+)")
DATA = """
import sys, torch
if not torch.cuda.is_available():
    from recycle.megatron.shared.cpu import run_on_cpu
    run_on_cpu()
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from recycle.megatron.gpt.text import standard_library
builder, text = IndexedDatasetBuilder(sys.argv[1] + ".bin"), standard_library()[:400_000]
for start in range(0, len(text), 10_000):
    document = torch.tensor(list(text[start : start + 10_000]))
    builder.add_document(document, [len(document)])
builder.finalize(sys.argv[1] + ".idx")
"""


class Line(NamedTuple):
    """What a run has printed of an iteration.

    Attributes:
        milliseconds: that it took.
        loss: of its batch.
    """

    milliseconds: float
    loss: float


class Job(NamedTuple):
    """A run of the script.

    Attributes:
        folder: where its data is, and what it writes.
        ranks: how many.
        words: of its command line.
        module: that runs it.
        on_cpu: whether it sees no GPU.
        script: of training.
    """

    folder: Path
    ranks: int
    words: Sequence[str]
    module: Sequence[str] = (MODULE,)
    on_cpu: bool = False
    script: Path = SCRIPT

    def run(self, kills: Mapping[int, int]) -> list[Line]:
        """Run it to its end.

        Args:
            kills: ranks whose worker is killed, by the iteration after which.

        Raises:
            RuntimeError: it failed.
        """
        left, output = dict(kills), ""
        # More than one rank may print an iteration in whose middle roles change.
        lines: dict[int, Line] = {}
        with ExitStack() as ranks:
            started = [ranks.enter_context(each) for each in self._start()]
            ranks.callback(_end, started)
            # Megatron's last rank speaks, and where it is dead, who plays it.
            assert started[0].stdout is not None
            for line in started[0].stdout:
                output += line
                found = PRINTED.search(line)
                if found is None:
                    continue
                done = int(found[1])
                lines[done] = Line(float(found[2]), float(found[3]))
                if (victim := left.pop(done, None)) is not None:
                    send_signal(children(started[victim].pid)[0], signal.SIGKILL)
            failed = [each.wait() for each in started]
        if any(failed):
            raise RuntimeError(f"ranks ended with {failed}: {_reason(output)}")
        return [lines[number] for number in sorted(lines)]

    def _start(self) -> list["subprocess.Popen[str]"]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        gpus = max(1, torch.cuda.device_count())
        reader, writer = os.pipe()
        started = []
        for rank in range(self.ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank % gpus, "WORLD_SIZE": self.ranks, "MASTER_PORT": port}
            variables = {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
            variables |= {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
            if self.on_cpu or not torch.cuda.is_available():
                variables |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-W", "ignore", "-m", *self.module, str(self.script), *self.words]
            environment = os.environ | variables
            started.append(
                subprocess.Popen(command, env=environment, cwd=self.folder, stdout=writer, stderr=writer, text=True)
            )
        os.close(writer)
        started[0].stdout = os.fdopen(reader)
        return started


def survive_under_flag(backends: Sequence[str], kind: str, script: Path = SCRIPT) -> str:
    """A script under the flag, of two pipelines in which a rank is killed, against one pipeline on the CPU.

    Args:
        backends: of torch.distributed, under each of which it is run.
        kind: of device.
        script: that calls Megatron's ``pretrain``.

    Raises:
        RuntimeError: a run failed, or its losses are others.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = _prepare(Path(name))
        shape = [*_words(folder, "small", 16, ITERATIONS), *FLAG]
        shape += ["--pipeline-model-parallel-size", "2"]
        # Torch's groups do not survive, and those of gloo cannot sum all that Megatron sums on a GPU.
        whole = Job(folder, 2, [*shape, "--distributed-backend", "gloo"], on_cpu=True, script=script).run({})
        found = []
        for backend in backends:
            words = [*shape, "--distributed-backend", backend]
            lines = Job(folder, RANKS, words, script=script).run({DEATH: VICTIM})
            if len(lines) != len(whole) or len(lines) != ITERATIONS:
                raise RuntimeError(
                    f"over {backend}: {len(lines)} of {ITERATIONS} iterations, {len(whole)} of one pipeline"
                )
            apart = _apart(f"over {backend}", lines, whole, kind)
            usual = statistics.median(each.milliseconds for each in lines)
            slow = max(each.milliseconds for each in lines[DEATH:])
            found.append(
                f"over {backend} losses differ by at most {apart:.1e}, the iteration of the death took {slow:.0f} ms, "
                f"others {usual:.0f} ms"
            )
    return f"{script.name}, {RANKS} ranks on {kind}, one killed, against one pipeline on the cpu: {'; '.join(found)}"


def time_against_stock(stages: int, kind: DeviceKind, model: str) -> str:
    """Iterations of stock 1F1B against those of plans that fuse the backward pass and split it, made by one profile.

    Args:
        stages: how many, each of a process.
        kind: of device.
        model: of which size, of SIZES.

    Raises:
        RuntimeError: a run failed, its losses are others, or the plan that was to be split was fused.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = _prepare(Path(name))
        size = SIZES[model]
        profiles = profile(msgspec.convert(size, ModelOptions), stages, kind)
        (folder / "job.toml").write_text(job_text(1, 8, profiles))
        plans = ["--backward", "fused", "--optimizer", "global", "--failures", "0"]
        run_recycle(folder, "catalogue", "job.toml", *plans, "-o", "plans.zip")
        backend = "gloo" if kind == "cpu" else "nccl"
        words = [*_words(folder, model, 8 * size["micro_batch_size"], TIMED[model]), "--distributed-backend", backend]
        words += ["--pipeline-model-parallel-size", str(stages)]
        flag = [*FLAG, "--recycle-catalogue", "plans.zip", "--recycle-budget", "1s", "--recycle-record"]
        runs: dict[str, list[list[Line]]] = {"stock": [], "fused": [], "split": []}
        # In turns, because what else the machine does changes.
        for turn in range(TURNS[model]):
            for variant, done in runs.items():
                more = [] if variant == "stock" else [*flag, f"{variant}{turn}"]
                module = (MODULE,) if variant == "stock" else (PLANNED, variant)
                done.append(Job(folder, stages, [*words, *more], module).run({}))
        stock, fused, split = (_usual(done) for done in runs.values())
        apart = max(
            _apart(f"the {variant} plan", lines, other, kind)
            for variant in ("fused", "split")
            for lines, other in zip(runs[variant], runs["stock"], strict=True)
        )
        costs = {variant: _costs(folder / f"{variant}0") for variant in ("fused", "split")}
        if "W" not in costs["split"]:
            raise RuntimeError(f"the split plan came out fused: {costs['split']}")
        return (
            f"{stages} stages of a {model} model on {kind}: stock 1F1B {stock:.1f} ms, a fused plan "
            f"{fused / stock:.3f} of it, a split one {split / stock:.3f}; losses differ by at most {apart:.1e}; in ms, "
            f"by the profile {_profiled(profiles)}, in the runs {costs['fused']}, and {costs['split']}"
        )


def _usual(runs: Sequence[Sequence[Line]]) -> float:
    """The median time of an iteration in some runs, without their first third; in milliseconds."""
    return statistics.median(each.milliseconds for lines in runs for each in lines[len(lines) // 3 :])


def _apart(what: str, lines: Sequence[Line], others: Sequence[Line], kind: str) -> float:
    """How far the losses of a run are from those of another one.

    Raises:
        RuntimeError: further than rounding takes them.
    """
    found = max(abs(one.loss - other.loss) / other.loss for one, other in zip(lines, others, strict=True))
    if found > APART[kind]:
        raise RuntimeError(f"{what}: losses differ by {found:.1e}")
    return found


def _profiled(stages: Sequence[StageProfile]) -> str:
    """What each stage was measured to cost, in milliseconds."""
    return " ".join(
        f"F{number} {each.forward / 1000:.2f} I{number} {each.input_gradient / 1000:.2f} "
        f"W{number} {each.weight_gradient / 1000:.2f}"
        for number, each in enumerate(stages)
    )


def _costs(recording: Path) -> str:
    """The medians of what each stage computed, in milliseconds; recordings have microseconds."""
    spans = [each for each in load_recording(recording).spans if each.lane == "compute"]
    taken: dict[str, list[float]] = {}
    for each in spans:
        if each.instruction.op.phases:
            name = f"{each.instruction.op.value}{each.instruction.stage}"
            taken.setdefault(name, []).append(each.end - each.start)
    return " ".join(f"{name} {statistics.median(each) / 1000:.2f}" for name, each in sorted(taken.items()))


def _prepare(folder: Path) -> Path:
    """Make the data that the script reads."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", DATA, str(folder / "text")], check=True, cwd=ROOT)
    return folder


def _words(folder: Path, model: str, batch: int, iterations: int) -> list[str]:
    """The script's arguments; those of layers that need no kernels but torch's work on GPUs as well."""
    size = SIZES[model]
    sizes = {
        "--num-layers": size["layers"],
        "--hidden-size": size["hidden"],
        "--num-attention-heads": size["heads"],
        "--seq-length": size["sequence"],
        "--max-position-embeddings": size["sequence"],
        "--micro-batch-size": size["micro_batch_size"],
        "--global-batch-size": batch,
        "--train-iters": iterations,
    }
    rest = (
        f"--data-path {folder / 'text'} --split 100,0,0 --vocab-size 255 --make-vocab-size-divisible-by 1 --lr 1e-3 "
        "--tokenizer-type NullTokenizer --lr-decay-style constant --hidden-dropout 0 --attention-dropout 0 "
        "--log-interval 1 --eval-interval 1000 --eval-iters 0 --num-workers 0"
    )
    return [*(str(word) for pair in sizes.items() for word in pair), *rest.split(), *settings_for_cpu([])]


def _end(started: "Sequence[subprocess.Popen[str]]") -> None:
    for each in started:
        if each.poll() is None:
            each.kill()


def _reason(output: str) -> str:
    """The last line that says what went wrong."""
    said = [line.strip() for line in output.splitlines() if "Error" in line or line.startswith("recycle: ")]
    return said[-1] if said else output[-200:]
