"""The part of ``scripts/gpu-check`` that times what executing a plan costs: all stages in one process, on one device.

The same layers are run by a plan that fuses the backward pass, by the same with a wait for the device after each
instruction, by one that splits the backward pass, and by Megatron's own schedule without pipelining. With one process
there is nothing to wait for but the device, so that what is longer than Megatron's is what the executor costs. The
optimizer's step is timed apart, and so is the copy of a version that it keeps.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import torch
from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining
from torch.distributed import Store
from torch.profiler import ProfilerActivity, profile

from harness.local import LocalProcess, launch
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.jobfile import load_job
from recycle.megatron.gpt.device import compute_on
from recycle.megatron.gpt.forward import forward_step, load_text
from recycle.megatron.gpt.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place, groups_of, join_server
from recycle.plan.instruction import Instruction, Op
from recycle.plan.mode import Mode
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves
from recycle.record.recorder import Recorder
from recycle.runtime.device import DeviceClock, DeviceKind, settle
from recycle.runtime.execute.executor import Hooks
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.update import TorchUpdate

CHUNKS, MICRO_BATCHES, ITERATIONS = 4, 8, 6
"""The stages of the model, the micro-batches of an iteration, and how many are made; the first two warm up."""

PLACEMENT = f"consecutive:{CHUNKS}"

SERVER = Server(0, 0)
SIZES: Mapping[DeviceKind, ModelOptions] = {
    "cuda": ModelOptions(CHUNKS, hidden=4096, heads=32, sequence=2048, micro_batch_size=1, bf16=True),
    "cpu": ModelOptions(CHUNKS, hidden=64, heads=4, sequence=64, micro_batch_size=1),
}


class Timed(msgspec.Struct):
    """What the iterations of a way took, in milliseconds, and what came out.

    Attributes:
        compute: from the first forward pass to the end of the last backward pass, of each iteration.
        step: of the reduction with nothing and the optimizer.
        keep: of the copy of a version into host memory within it.
        kept: bytes of that copy.
        losses: of the first iteration.
    """

    compute: list[float]
    step: list[float]
    keep: float
    kept: int
    losses: list[float]


class ComputeClock:
    """Hooks that time the computing of an iteration: all that comes before the first reduction."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._begun: float | None = None

    def before(self, _: int, instruction: Instruction) -> None:
        """See Hooks."""
        if instruction.op is Op.REDUCE:
            if self._begun is not None:
                self.taken.append(1000 * (time.perf_counter() - self._begun))
                self._begun = None
        elif self._begun is None and instruction.op is Op.F:
            self._begun = time.perf_counter()

    def after(self, iteration: int, instruction: Instruction, seconds: Callable[[], float]) -> None:
        """See Hooks."""


class Waiting:
    """Hooks that wait for the device after each instruction, so that no launch is hidden."""

    def before(self, iteration: int, instruction: Instruction) -> None:
        """See Hooks."""

    def after(self, _: int, __: Instruction, seconds: Callable[[], float]) -> None:
        """See Hooks."""
        seconds()


Way = Literal["plain", "fused", "waiting", "split"]


def time_executor(kind: DeviceKind) -> str:
    """The times of plans against those of Megatron without pipelining.

    Args:
        kind: of device.

    Raises:
        RuntimeError: losses are others.
    """
    found = {way: _run(way, kind) for way in get_args(Way)}
    plain = found["plain"]
    for way, each in found.items():
        torch.testing.assert_close(
            torch.tensor(each.losses), torch.tensor(plain.losses), rtol=1e-3, atol=1e-4, msg=f"{way}: other losses"
        )
    usual = {way: statistics.median(each.compute[2:]) for way, each in found.items()}
    apart = max(abs(a - b) for each in found.values() for a, b in zip(each.losses, plain.losses, strict=True))
    size, fused = SIZES[kind], found["fused"]
    rate = fused.kept / 1e6 / fused.keep
    return (
        f"{CHUNKS} layers of {size.hidden} x {size.sequence} on {kind}, {MICRO_BATCHES} micro-batches: plain Megatron "
        f"{usual['plain']:.1f} ms, a fused plan {usual['fused'] / usual['plain']:.3f} of it, with a wait after each "
        f"instruction {usual['waiting'] / usual['plain']:.3f}, a split one "
        f"{usual['split'] / usual['plain']:.3f}; losses differ by at most {apart:.1e}; step with the copy of a version "
        f"{statistics.median(fused.step[2:]):.0f} ms, the copy alone {fused.keep:.0f} ms, {fused.kept / 1e9:.2f} GB "
        f"at {rate:.1f} GB/s"
    )


def _run(way: Way, kind: DeviceKind) -> Timed:
    found: list[Timed] = []
    options = SIZES[kind]

    def body(member: LocalProcess) -> None:
        device = compute_on(kind, 0)
        made = _time_plain(options, device) if way == "plain" else _time_plan(way, options, device, member.store())
        member.report(msgspec.json.encode(made))

    launch(1, body, lambda _, content: found.append(msgspec.json.decode(content, type=Timed)), threads=8)
    return found[0]


def _time_plain(options: ModelOptions, device: torch.device) -> Timed:
    """All layers as one model of Megatron's, which has the chunks' parameters and adds up gradients as they do."""
    groups = join_server(SERVER, 1)
    config = transformer_config(options, 1)
    model = build_stage(options, config, 0, 1, groups_of(groups, Place(0, 1))).to(device)
    # They were made chunk by chunk, each from a seed of its own.
    parameters = (each for chunk in _chunks(options, groups, device) for each in chunk.parameters())
    with torch.no_grad():
        for own, other in zip(model.parameters(), parameters, strict=True):
            own.copy_(other)
    main = MainParameters(model.parameters())
    gradients = [torch.zeros_like(each) for each in main]
    main.use(gradients)
    text = load_text(None, options)
    compute, losses = [], []
    for step in range(ITERATIONS):
        batches = [text.samples(MicroBatch(step, 0, number)) for number in range(MICRO_BATCHES)]
        torch._foreach_zero_(gradients)
        settle()
        begun = time.perf_counter()
        reported = forward_backward_no_pipelining(
            forward_step_func=forward_step,
            data_iterator=iter(batches),
            model=[model],
            num_microbatches=MICRO_BATCHES,
            seq_length=options.sequence,
            micro_batch_size=options.micro_batch_size,
            forward_only=False,
        )
        settle()
        compute.append(1000 * (time.perf_counter() - begun))
        losses.append([float(each["lm loss"]) for each in reported])
    return Timed(compute, [], 0.0, 0, losses[0])


def _time_plan(way: Way, options: ModelOptions, device: torch.device, store: Store) -> Timed:
    """The chunks by a plan of one server that has them all."""
    clock = ComputeClock()
    hooks: list[Hooks] = [Waiting(), clock] if way == "waiting" else [clock]
    worker, update = make_worker("split" if way == "split" else "fused", options, device, store, hooks)
    losses: list[float] = []
    step = []
    for number in range(ITERATIONS):
        begun = time.perf_counter()
        report = worker.run(number)
        step.append(1000 * (time.perf_counter() - begun) - clock.taken[-1])
        losses = losses or list(report.losses)
    settle()
    begun = time.perf_counter()
    update.versions.keep()
    settle()
    kept = sum(each.nbytes for each in update.versions.copies)
    return Timed(clock.taken, step, 1000 * (time.perf_counter() - begun), kept, losses)


def make_worker(
    backward: Literal["fused", "split"],
    options: ModelOptions,
    device: torch.device,
    store: Store,
    hooks: Sequence[Hooks] = (),
) -> tuple[Worker, TorchUpdate]:
    """A server that has all chunks of a model, by a plan of one server; and what steps them.

    Args:
        backward: how the plan has the backward pass.
        options: of the model.
        device: that computes.
        store: where the server meets itself.
        hooks: what is told of every instruction.
    """
    job = load_job(None, {"pipelines": 1, "stages": 1, "micro_batches": MICRO_BATCHES, "placement": PLACEMENT})
    plan = make_plan(job, (), Mode(backward, "global"), Effort((MaxMoves(0),), "no moves"))
    groups, text = join_server(SERVER, CHUNKS), load_text(None, options)
    shape = (options.sequence, options.micro_batch_size, options.hidden)
    stages = [
        MegatronStage(chunk, Place(number, CHUNKS), shape, MICRO_BATCHES, forward_step, text, options.seed)
        for number, chunk in enumerate(_chunks(options, groups, device))
    ]
    main = MainParameters(*(stage.parameters() for stage in stages))
    update = TorchUpdate(main, options.make_optimizer, 1, range(CHUNKS), CHUNKS, Method(keep=True))
    network = connect(store, View.of(plan), SERVER, NetworkOptions(transport="staged"))
    update.connect(network)
    worker = Worker(plan, stages, update, network, Recorder(SERVER, clock=DeviceClock()), hooks=hooks)
    return worker, update


def _chunks(options: ModelOptions, groups: Any, device: torch.device) -> Iterator[torch.nn.Module]:
    """The stages of the model, in their order."""
    for number in range(CHUNKS):
        place = groups_of(groups, Place(number, CHUNKS))
        yield build_stage(options, transformer_config(options, CHUNKS), number, CHUNKS, place).to(device)


def find_gaps(kind: DeviceKind) -> str:
    """The longest time for which a device has nothing to do while an iteration is computed, by the profiler."""
    found: list[str] = []

    def body(member: LocalProcess) -> None:
        device = compute_on(kind, 0)
        worker, _ = make_worker("fused", SIZES[kind], device, member.store())
        worker.run(0)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if kind == "cuda" else [])]
        with profile(activities=activities) as trace:
            worker.run(1)
            settle()
        events = trace.events() or []
        busy = [(each.time_range.start, each.time_range.end) for each in events if _is_work(each, kind)]
        longest, idle = idle_between(busy)
        member.report(
            f"an iteration on {kind} by the profiler: {len(busy)} pieces of work, the longest gap between two "
            f"{longest / 1000:.3f} ms, all gaps {100 * idle:.1f}% of the time".encode()
        )

    launch(1, body, lambda _, content: found.append(content.decode()), threads=8)
    return found[0]


def idle_between(busy: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The longest gap between some intervals that may overlap, and which part of the whole all gaps are."""
    longest = idle = 0.0
    first = end = None
    for start, stop in sorted(busy):
        if first is None or end is None:
            first = end = start
        if start > end:
            longest, idle = max(longest, start - end), idle + start - end
        end = max(end, stop)
    if first is None or end is None or end == first:
        return 0.0, 0.0
    return longest, idle / (end - first)


def _is_work(event: Any, kind: DeviceKind) -> bool:
    if kind == "cuda":
        return bool(event.device_type == torch.autograd.DeviceType.CUDA)
    return str(event.name).startswith("aten::")
