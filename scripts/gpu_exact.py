"""The part of ``scripts/gpu-check`` that kills servers of an exact run, and compares what was trained."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.digests import data_digests
from recycle.runtime.checkpoint_folders import DIGESTS
from recycle.runtime.device import DeviceKind
from scripts.gpu_recycle import run_recycle

ENDING = re.compile(r"\d+ failures?, \w+ rejoins?, \w+ iterations? made again")


class Shape(NamedTuple):
    """Of a run.

    Attributes:
        pipelines: D.
        stages: P.
        iterations: that it trains.
        failures: options that ask for them.
    """

    pipelines: int
    stages: int
    iterations: int
    failures: Sequence[str]


FAULTS = """
fault = [
    { kind = "kill", server = "W1_0", iteration = 5, instruction = "0F1" },
    { kind = "join", server = "W1_0", iteration = 7 },
    { kind = "kill", server = "W0_1", iteration = 13, instruction = "1REDUCE" },
]
"""
"""Where a machine is too slow for many."""

SHAPES: Mapping[DeviceKind, Shape] = {
    "cuda": Shape(3, 4, 150, ("--faults", "mtbf=2s,seed=1")),
    "cpu": Shape(2, 2, 16, ("--faults", "faults.toml")),
}


def train_exactly(kind: DeviceKind) -> str:
    """Train the same with and without kills, and compare what the last checkpoints hold.

    Args:
        kind: of device.

    Raises:
        RuntimeError: a run failed, there was no kill, or a bit is another one.
    """
    shape = SHAPES[kind]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "faults.toml").write_text(FAULTS)
        (folder / "model.toml").write_text("exact = true\n")
        _train(folder, "calm", shape, kind)
        said = _train(folder, "killed", shape, kind, *shape.failures)
        ending = ENDING.search(said)
        if ending is None:
            raise RuntimeError(f"no server was killed: {said.strip().splitlines()[-3:]}")
        digests = [_digests(folder / each / "checkpoints") for each in ("calm", "killed")]
        if digests[0] != digests[1]:
            raise RuntimeError("the last checkpoint of the run with kills is not that of the run without")
    times = re.findall(r"recovered in .* median, .* worst", said)
    return (
        f"{shape.pipelines} x {shape.stages} servers on {kind}, {shape.iterations} iterations: {ending[0]}; "
        f"the checkpoint is equal to the bit with that of a run without kills ({len(digests[0])} files); {times[-1]}"
    )


def _train(folder: Path, name: str, shape: Shape, kind: DeviceKind, *words: str) -> str:
    """What a run printed."""
    size = ["-D", shape.pipelines, "-P", shape.stages, "-M", shape.stages, "--iterations", shape.iterations]
    return run_recycle(folder, "train", *map(str, size), "--model", "model.toml", "--device", kind, "-o", name, *words)


def _digests(checkpoints: Path) -> dict[str, Mapping[str, str]]:
    """Of all files with tensors of the newest checkpoint, by their folder."""
    newest = max(each for each in checkpoints.iterdir() if each.name.startswith("step-"))
    return {str(each.parent.relative_to(newest)): data_digests(each.parent) for each in sorted(newest.rglob(DIGESTS))}
