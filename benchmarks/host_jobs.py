"""Jobs of 12 servers on three hosts, for benchmarks: ``recycle train``, and a Megatron script under the flag."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
    (folder / "model.toml").write_text(MODEL)
    pipelines, stages = map(str, shape)
    size = ["--pipelines", pipelines, "--stages", stages, "--micro-batches", "4"]
    files = ["--model", str(folder / "model.toml"), "-o", str(folder / "run")]
    chosen = ["--exact"] * exact + (["--store", store] if store else [])
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
