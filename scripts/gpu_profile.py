"""The parts of ``scripts/gpu-check`` that ask what the stages of a GPT cost and hold on a device.

Each stage is timed in a process of its own while nothing else runs, because processes that share cores would time each
other.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from harness.local import LocalProcess, launch
from recycle.job import Server
from recycle.megatron.gpt.device import compute_on, require_means
from recycle.megatron.gpt.forward import forward_step, load_text
from recycle.megatron.gpt.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place, join_server
from recycle.runtime.device import DeviceKind, settle
from recycle.runtime.execute.stage import MicroBatch
from scripts.gpu_recycle import run_recycle

STAGES, MICRO_BATCHES = 2, 8
TURNS, WARM_UP = 5, 2
"""How often each stage is timed, and how many turns before that allocate and initialize."""

SMALL = ModelOptions()
LARGE = ModelOptions(STAGES, hidden=4096, heads=32, sequence=2048, micro_batch_size=1, bf16=True)
"""Its layers are of a real size."""


class StageProfile(msgspec.Struct, frozen=True):
    """What one stage was measured to cost, in microseconds, and to hold, in bytes.

    Attributes:
        forward: of F for one micro-batch.
        input_gradient: of I.
        weight_gradient: of W.
        held: what F saves for the backward pass, without parameters.
        kept: what I leaves behind for W.
    """

    forward: int
    input_gradient: int
    weight_gradient: int
    held: int
    kept: int

    @property
    def times(self) -> tuple[int, int, int]:
        """Of F, I and W."""
        return self.forward, self.input_gradient, self.weight_gradient


def profile_stages(kind: DeviceKind, small: bool) -> str:
    """Measure two stages, and plan a job of theirs in which a server is dead.

    Args:
        kind: of device.
        small: whether the model is small on a GPU as well.
    """
    found = profile(SMALL if small or kind == "cpu" else LARGE, STAGES, kind)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.toml").write_text(job_text(2, MICRO_BATCHES, found))
        plan = run_recycle(Path(folder), "plan", "job.toml", "--dead", "W1_1", "--moves", "500")
    throughput = next(line.split(maxsplit=1)[1] for line in plan.splitlines() if line.startswith("throughput "))
    stages = (
        " ".join([*(f"{time / 1000:.2f} ms" for time in each.times), *(f"{size / 1e6:.2f} MB" for size in memory)])
        for each in found
        for memory in [(each.held, each.kept)]
    )
    return f"F, I, W, held, after I of two stages: {', '.join(stages)}; with one of 4 servers dead: {throughput}"


def profile(options: ModelOptions, stages: int, kind: DeviceKind) -> list[StageProfile]:
    """What each stage of a model costs and holds.

    Args:
        options: the model.
        stages: into how many it is cut.
        kind: of device.
    """
    require_means(options, kind, stages)
    return [_profile_stage(options, Place(number, stages), kind) for number in range(stages)]


def job_text(pipelines: int, micro_batches: int, stages: Sequence[StageProfile]) -> str:
    """A job file with what was measured, and without transfers, reductions and steps."""
    shape = {"pipelines": pipelines, "stages": len(stages), "micro_batches": micro_batches}
    units = {"time_unit": '"microsecond"', "memory_unit": '"byte"'}
    costs = {key: [getattr(each, key) for each in stages] for key in ("forward", "input_gradient", "weight_gradient")}
    memory = {
        "held": [each.held for each in stages],
        "released_at_input_gradient": [max(0, each.held - each.kept) for each in stages],
        "taken_at_input_gradient": [max(0, each.kept - each.held) for each in stages],
    }
    tables = ("", shape | units), ("[costs]\n", costs), ("[memory]\n", memory)
    return "".join(head + "".join(f"{key} = {value}\n" for key, value in keys.items()) for head, keys in tables)


def _profile_stage(options: ModelOptions, place: Place, kind: DeviceKind) -> StageProfile:
    found: list[StageProfile] = []

    def body(member: LocalProcess) -> None:
        device = compute_on(kind, 0)
        groups = join_server(Server(0, place.stage), place.depth)
        config = transformer_config(options, place.depth)
        model = build_stage(options, config, place.stage, place.depth, groups).to(device)
        shape = (options.sequence, options.micro_batch_size, options.hidden)
        stage = MegatronStage(model, place, shape, MICRO_BATCHES, forward_step, load_text(None, options))
        times: list[list[int]] = [[], [], []]
        held = kept = 0
        for turn in range(WARM_UP + TURNS):
            micro_batch = MicroBatch(turn, 0, 0)
            received = torch.randn_like(stage.input.empty()) if stage.input else None
            gradient = torch.randn_like(stage.output.empty()) if stage.output else None
            counter = SavedBytes(model)
            with counter if turn == 0 else torch.enable_grad():
                forward = _timed(lambda: stage.forward(micro_batch, received))  # noqa: B023 - called at once
            held = held or counter.total
            input_gradient = _timed(lambda: stage.input_gradient(micro_batch, gradient))  # noqa: B023
            kept = kept or stage.owed_bytes()
            weight_gradient = _timed(lambda: stage.weight_gradient(micro_batch))  # noqa: B023
            for series, taken in zip(times, (forward, input_gradient, weight_gradient), strict=True):
                series.append(taken)
        of_f, of_i, of_w = (round(statistics.median(each[WARM_UP:])) for each in times)
        member.report(msgspec.json.encode(StageProfile(of_f, of_i, of_w, max(held, 1), kept)))

    launch(1, body, lambda _, content: found.append(msgspec.json.decode(content, type=StageProfile)))
    return found[0]


class SavedBytes:
    """Counts the bytes that autograd saves within a block, each storage once and without parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = {each.untyped_storage().data_ptr() for each in model.parameters()}
        self._seen: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor)

    @property
    def total(self) -> int:
        """Bytes so far."""
        return sum(self._seen.values())

    def __enter__(self) -> "SavedBytes":
        self._hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__()

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._parameters:
            self._seen[storage.data_ptr()] = storage.nbytes()
        return tensor


def _timed(act: Callable[[], object]) -> int:
    """How long it takes, in microseconds."""
    settle()
    start = time.perf_counter_ns()
    act()
    settle()
    return (time.perf_counter_ns() - start) // 1000
