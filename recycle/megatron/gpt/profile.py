"""Measuring a job: what the stages of a GPT cost and hold on this machine.

Each stage is timed in a process of its own while nothing else runs, because processes that share cores would time each
other. Reduction and transfer are timed between processes of this machine.
"""

import statistics
import time
from collections.abc import Callable

import msgspec
import torch

from recycle.control.membership.view import View
from recycle.job import Job, Server, Stage, memory_needed
from recycle.megatron.gpt.device import compute_on, require_means
from recycle.megatron.gpt.forward import forward_step
from recycle.megatron.gpt.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.gpt.text import TokenText
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place, join_server
from recycle.runtime.device import DeviceKind, settle
from recycle.runtime.execute.stage import MicroBatch, TensorSpec
from recycle.runtime.launch.process.local import LocalProcess, launch
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.transfer_key import Carried, TransferKey
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.update import TorchUpdate

MICROSECONDS = 1e6


class StageProfile(msgspec.Struct, frozen=True):
    """What one stage was measured to cost, in seconds, and to hold, in bytes.

    Attributes:
        forward: of F for one micro-batch.
        input_gradient: of I.
        weight_gradient: of W.
        optimizer: of the optimizer step.
        held: what F saves for the backward pass, without parameters.
        kept: what I leaves behind for W.
        gradients: bytes of gradients to reduce.
        state: bytes that are held all the time: parameters, moments, gradients, and what is kept of them.
    """

    forward: float
    input_gradient: float
    weight_gradient: float
    optimizer: float
    held: int
    kept: int
    gradients: int
    state: int

    @property
    def taken(self) -> int:
        """What I takes on top of what F saved."""
        return max(0, self.kept - self.held)


def profile(job: Job, options: ModelOptions, text: TokenText, repeats: int, kind: DeviceKind = "cpu") -> Job:
    """The job with measured costs in microseconds and memory in bytes; its limit has room for P micro-batches.

    Args:
        job: for its shape.
        options: the model.
        text: what the micro-batches are of.
        repeats: how often each thing is timed; the median counts.
        kind: of the device that computes.

    Raises:
        RunError: the model cannot be cut so, or there is no such device.
    """
    count = len(job.stages)
    require_means(options, kind, count)
    transformer_config(options, count)
    profiles = [_profile_stage(stage, job, options, text, repeats, kind) for stage in range(count)]
    reductions = _time_reductions(job.pipelines, [each.gradients for each in profiles], repeats, kind)
    latency = _time_transfer(options, repeats, kind) if count > 1 else 0.0
    together = [[profiles[chunk] for chunk in job.chunks[place]] for place in job.places]
    room = [memory_needed(job.depth, [each.held for each in mine], [each.taken for each in mine]) for mine in together]
    stages = [
        Stage(
            forward=_micro(each.forward),
            input_gradient=_micro(each.input_gradient),
            weight_gradient=_micro(each.weight_gradient),
            optimizer=_micro(each.optimizer),
            reduction=_micro(reduction),
            held=each.held,
            released_at_input_gradient=max(0, each.held - each.kept),
            taken_at_input_gradient=each.taken,
            limit=limit,
            state=each.state,
        )
        for each, reduction, limit in zip(profiles, reductions, room, strict=True)
    ]
    return Job(
        job.pipelines,
        job.micro_batches,
        tuple(stages),
        (_micro(latency),) * (count - 1),
        job.name,
        "microsecond",
        "byte",
        job.placement,
    )


def _profile_stage(
    number: int, job: Job, options: ModelOptions, text: TokenText, repeats: int, kind: DeviceKind
) -> StageProfile:
    found: list[StageProfile] = []

    def body(member: LocalProcess) -> None:
        device = compute_on(kind, 0)
        place = Place(number, len(job.stages))
        groups = join_server(Server(0, number), place.depth)
        config = transformer_config(options, place.depth)
        model = build_stage(options, config, number, place.depth, groups).to(device)
        spec = _boundary(options, device)
        stage = MegatronStage(model, place, spec.shape, job.micro_batches, forward_step, text)
        addends = job.pipelines * job.micro_batches if options.exact else 0
        method = Method(options.clip, True, addends, keep=True, scale=options.scale_rule)
        update = TorchUpdate(
            MainParameters(stage.parameters()), options.make_optimizer, job.pipelines, [number], place.depth, method
        )

        def make_step() -> None:
            update.versions.keep()
            update.optimizer.step()
            update.main.copy_back()
            update.versions.advance()

        times: list[list[float]] = [[], [], [], []]
        held = kept = 0
        for turn in range(repeats + 2):
            micro_batch = MicroBatch(turn, 0, 0)
            received = torch.randn_like(spec.empty()) if stage.input else None
            gradient = torch.randn_like(spec.empty()) if stage.output else None
            counter = SavedBytes(model)
            with counter if turn == 0 else torch.enable_grad():
                forward = _timed(lambda: stage.forward(micro_batch, received))  # noqa: B023 - called at once
            held = held or counter.total
            input_gradient = _timed(lambda: stage.input_gradient(micro_batch, gradient))  # noqa: B023
            kept = kept or stage.owed_bytes()
            weight_gradient = _timed(lambda: stage.weight_gradient(micro_batch))  # noqa: B023
            step = _timed(make_step)
            update.drop()
            # The first turns allocate and initialize.
            if turn >= 2:
                for series, seconds in zip(times, (forward, input_gradient, weight_gradient, step), strict=True):
                    series.append(seconds)
        forward, input_gradient, weight_gradient, step = map(statistics.median, times)
        size = sum(each.nbytes for each in update.sums.collected.buffers) * (2 if options.exact else 1)
        measured = StageProfile(
            forward, input_gradient, weight_gradient, step, max(held, 1), kept, size, _state_bytes(update)
        )
        member.report(msgspec.json.encode(measured))

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


def _time_reductions(pipelines: int, sizes: list[int], repeats: int, kind: DeviceKind) -> list[float]:
    if pipelines == 1:
        return [0.0] * len(sizes)
    view = View.among(Server(pipeline, 0) for pipeline in range(pipelines))
    found: list[list[float]] = []

    def body(member: LocalProcess) -> None:
        device = compute_on(kind, member.rank)
        network = connect(member.store(), view, view.servers[member.rank], _options(kind))
        medians = []
        for size in sizes:
            tensor = torch.zeros(max(1, size // 4), device=device)
            network.peers.sum(tensor)
            series = []
            for _ in range(repeats):
                network.barrier()
                series.append(_timed(lambda: network.peers.sum(tensor)))  # noqa: B023 - called at once
            medians.append(statistics.median(series))
        network.barrier()
        member.report(msgspec.json.encode(medians))

    launch(pipelines, body, lambda _, content: found.append(msgspec.json.decode(content, type=list[float])))
    return [max(times) for times in zip(*found, strict=True)]


def _time_transfer(options: ModelOptions, repeats: int, kind: DeviceKind) -> float:
    view = View.among((Server(0, 0), Server(0, 1)))
    found: list[float] = []

    def body(member: LocalProcess) -> None:
        server, peer = view.servers[member.rank], view.servers[1 - member.rank]
        spec = _boundary(options, compute_on(kind, member.rank))
        network = connect(member.store(), view, server, _options(kind))
        link = network.link(peer)
        tensor = spec.empty()
        series = []
        for _ in range(repeats + 2):
            start = time.perf_counter()
            for sender, carried in enumerate((Carried.OUTPUT, Carried.GRADIENT)):
                begin = link.send if sender == member.rank else link.receive
                begin(tensor, TransferKey(carried)).wait()
                settle()
            series.append((time.perf_counter() - start) / 2)
        member.report(msgspec.json.encode(statistics.median(series[2:])))

    launch(2, body, lambda _, content: found.append(msgspec.json.decode(content, type=float)))
    return max(found)


def _boundary(options: ModelOptions, device: torch.device) -> TensorSpec:
    return TensorSpec((options.sequence, options.micro_batch_size, options.hidden), options.precision, device)


def _options(kind: DeviceKind) -> NetworkOptions:
    return NetworkOptions(transport="gloo" if kind == "cpu" else "staged")


def _timed(act: Callable[[], object]) -> float:
    settle()
    start = time.perf_counter()
    act()
    settle()
    return time.perf_counter() - start


def _micro(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def _state_bytes(update: TorchUpdate) -> int:
    """What a stage holds from its first step on: parameters, moments, gradients, exact sums, and their copies."""
    moments = [each for state in update.optimizer.state.values() for each in state.values()]
    tensors = [*update.main.tensors(), *moments, *update.versions.copies, *update.sums.tensors()]
    # What is kept in host memory is none of a GPU's.
    device = tensors[0].device
    near = [each for each in tensors if isinstance(each, torch.Tensor) and each.device == device]
    storages = [each.untyped_storage() for each in near]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
