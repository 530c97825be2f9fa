"""The parts of ``scripts/gpu-check`` that compute: what they compare is small, and its figures are the check's own."""

import os
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import get_context
from typing import Any, NamedTuple, cast

import msgspec
import torch
from torch.distributed import AllreduceOptions, PrefixStore, Store, TCPStore

from harness.local import LocalProcess, launch
from recycle.control.membership.participant import Participant
from recycle.control.membership.view import Member, ServerRank, View
from recycle.job import Job, Server
from recycle.jobfile import load_job
from recycle.plan.mode import Mode
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves
from recycle.record.recorder import Recorder
from recycle.runtime.device import DeviceClock, DeviceKind, take_device
from recycle.runtime.errors import ViewBroken
from recycle.runtime.execute.seeds import seed_of, seeded
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.execute.worker import Worker
from recycle.runtime.net.connect import connect
from recycle.runtime.net.network import NetworkOptions, TransportKind
from recycle.runtime.net.own_ranks import OwnRanks
from recycle.runtime.net.staged.network import StagedNetwork
from recycle.runtime.net.stop_line import OwnGroup
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.update import TorchUpdate
from scripts.plain_torch import TorchStage, boundaries, cut

WIDTH, ROWS, STEPS = 64, 8, 5
LOSS = torch.nn.functional.mse_loss
HOST = "127.0.0.1"
RANKS = 4
"""That kills are made among; one of them is replaced each time."""

EPOCHS = 3
"""Of a round of ``survive_kills``: with all, without the victim, and without it once it is dead."""

PATIENCE = timedelta(seconds=120)


class Samples:
    """What a small model is trained on, on a device.

    Args:
        device: which.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def inputs(self, micro_batch: MicroBatch) -> torch.Tensor:
        """The same three numbers give the same rows everywhere."""
        generator = torch.Generator().manual_seed(seed_of(1, micro_batch, 0))
        return torch.rand(ROWS, WIDTH, generator=generator).to(self._device) - 0.5

    def targets(self, micro_batch: MicroBatch) -> torch.Tensor:
        """Which are shifted by one place."""
        return self.inputs(micro_batch).roll(1, dims=1)


def model(depth: int, device: torch.device) -> torch.nn.Sequential:
    """A model of so many stages, whose parameters are made on the CPU."""
    with seeded(0):
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(depth - 1)]
        return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH)).to(device)


def _stage(number: int, depth: int, scale: float, device: torch.device) -> TorchStage:
    samples, stages = Samples(device), cut(model(depth, device), depth)
    boundary = boundaries(stages, samples.inputs(MicroBatch(0, 0, 0)))[number]
    return TorchStage(stages[number], number, boundary, samples.inputs, samples.targets, LOSS, scale)


def _computed(stage: TorchStage, split: bool, device: torch.device) -> list[torch.Tensor]:
    """What a stage in the middle makes of a micro-batch: output, gradient of its input, and those of its parameters."""
    micro_batch = MicroBatch(0, 0, 0)
    received, gradient = (Samples(device).inputs(MicroBatch(1, 0, number)) for number in range(2))
    output = stage.forward(micro_batch, received)
    act = stage.input_gradient if split else stage.backward
    back = act(micro_batch, gradient)
    if split:
        stage.weight_gradient(micro_batch)
    found = [output, back, *(each.grad for each in stage.parameters())]
    return [cast("torch.Tensor", each).detach().cpu() for each in found]


def compare_stages(kind: DeviceKind) -> str:
    """The largest difference between a stage on a device and on the CPU, and between a split and a fused one there."""
    torch.backends.cuda.matmul.allow_tf32 = False
    device, cpu = take_device(kind, 0), torch.device("cpu")
    stage = _stage(1, 3, 1.0, device)
    if stage.cannot_split:
        raise RuntimeError(stage.cannot_split)
    fused = _computed(_stage(1, 3, 1.0, device), False, device)
    split = _difference(_computed(stage, True, device), fused)
    other = _difference(_computed(_stage(1, 3, 1.0, cpu), False, cpu), fused)
    return f"on {kind}: at most {other:.1e} from the CPU's, split at most {split:.1e} from fused"


def _difference(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], relative: float = 1e-4) -> float:
    torch.testing.assert_close(list(first), list(second), rtol=relative, atol=relative / 10)
    return max(float((one - other).abs().max()) for one, other in zip(first, second, strict=True))


def train_staged(kind: DeviceKind) -> str:
    """The losses of 4 x 2 servers that share a device, over the staged transport, and those of one process."""
    job = load_job(None, {"pipelines": 4, "stages": 2, "micro_batches": 4})
    plan = make_plan(job, (), Mode(), Effort((MaxMoves(200),), "200 moves"))
    view = View.of(plan)
    found: dict[int, list[list[float]]] = {}

    def body(member: LocalProcess) -> None:
        device = take_device(kind, member.rank)
        server = view.servers[member.rank]
        # On a CPU too, everything is copied as if it lay on a device.
        network = StagedNetwork(connect(member.store(), view, server), crosses=lambda _: True)
        stage = _stage(server.stage, job.depth, 1 / job.micro_batches, device)
        update = TorchUpdate(
            MainParameters(stage.parameters()), torch.optim.AdamW, 4, [server.stage], job.depth, Method(staggered=True)
        )
        update.connect(network)
        worker = Worker(plan, [stage], update, network, Recorder(server, clock=DeviceClock()))
        losses = [list(worker.run(step).losses) for step in range(STEPS)]
        network.barrier()
        member.report(msgspec.json.encode(losses))

    def receive(rank: int, content: bytes) -> None:
        found[rank] = msgspec.json.decode(content, type=list[list[float]])

    launch(len(view.servers), body, receive)
    expected = _train_alone(job)
    losses = torch.tensor(found[len(view.servers) - 1])
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-5)
    difference = float(((losses - expected) / expected).abs().max())
    return f"8 servers on {kind}, {STEPS} iterations: losses differ by at most {difference:.1e} from one process"


def _train_alone(job: Job) -> torch.Tensor:
    whole, samples = model(job.depth, torch.device("cpu")), Samples(torch.device("cpu"))
    optimizer = torch.optim.AdamW(whole.parameters())
    table = torch.zeros(STEPS, job.pipelines * job.micro_batches)
    for step in range(STEPS):
        optimizer.zero_grad()
        for place in range(table.size(1)):
            micro_batch = MicroBatch(step, *divmod(place, job.micro_batches))
            loss = LOSS(whole(samples.inputs(micro_batch)), samples.targets(micro_batch))
            torch.autograd.backward(loss / table.size(1))
            table[step, place] = loss.detach()
        optimizer.step()
    return table


class Round(NamedTuple):
    """One death among the ranks of ``survive_kills``.

    Attributes:
        number: which.
        victim: who dies.
    """

    number: int
    victim: int


def call_own_ranks(kind: DeviceKind) -> str:
    """What two ranks of a server call in torch's own groups, waited for at once and later; on GPUs, over NCCL.

    Raises:
        RuntimeError: a call brings something else than it should.
    """
    transport: TransportKind = "nccl" if kind == "cuda" else "staged"
    both = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    def body(member: LocalProcess) -> None:
        device, rank = take_device(kind, member.rank), ServerRank(member.rank, 2)
        participant = Participant(Member(Server(0, 0), 0), rank)
        # On a CPU too, everything is copied as if it lay on a device.
        own = OwnRanks(
            member.store, participant, NetworkOptions(PATIENCE, PATIENCE, transport=transport), lambda _: True
        )
        other, mine = 1 - rank.number, both[rank.number].to(device)

        def call(name: str, *arguments: Any) -> Any:
            return own.start(OwnGroup((0, 1)), lambda: None, name, arguments, {})

        for later in (False, True):
            options = AllreduceOptions()
            options.asyncOp = later
            total, swapped, received = mine.clone(), torch.empty_like(mine), torch.empty_like(mine)
            call("allreduce", [total], options).wait()
            call("alltoall_base", swapped, mine, [], []).wait()
            # Over NCCL, two that both send first may wait for each other.
            ring = [("send", mine), ("recv", received)][:: 1 if rank.number == 0 else -1]
            for each in [call(name, [tensor], other, 0) for name, tensor in ring]:
                each.wait()
            found = [each.cpu() for each in (total, swapped, received)]
            expected = [both.sum(0), both[:, rank.number], both[other]]
            if not all(map(torch.equal, found, expected)):
                raise RuntimeError(f"rank {rank.number} of a server has {found}, and should have {expected}")

    launch(2, body)
    return f"2 ranks of a server on {kind} over {transport}: all as it should be"


class Mourner:
    """A rank among which others are killed: it connects with all, loses one, and connects with the rest.

    Args:
        rank: of this process.
        store: where ranks meet.
        transport: which.
        kind: of device.
    """

    def __init__(self, rank: int, store: Store, transport: TransportKind, kind: DeviceKind) -> None:
        self._rank = rank
        self._store = store
        self._device = take_device(kind, rank)
        self._options = NetworkOptions(PATIENCE, PATIENCE, transport=transport)
        self._over = threading.Event()

    def live(self, each: Round) -> None:
        """Take part in a round; who survives says when it has summed without the dead."""
        servers = [Server(number, 0) for number in range(RANKS)]
        network = self._connect(servers, EPOCHS * each.number)
        left = [one for one in servers if one.pipeline != each.victim]
        if self._rank != each.victim:
            # As they will be made without the victim, and nothing else: all who make them are there, and ready.
            begun = time.monotonic()
            bare = self._connect(left, EPOCHS * each.number + 1)
            self._say(f"bare/{each.number}", time.monotonic() - begun)
            bare.unblock()
        self._say(f"whole/{each.number}", time.monotonic())
        self._over.clear()
        alarm = threading.Thread(target=self._await_alarm, args=(each.number, network.unblock), daemon=True)
        alarm.start()
        try:
            # The victim never comes to the second one.
            network.peers.sum(torch.ones(4, device=self._device))
            if self._rank == each.victim:
                time.sleep(PATIENCE.total_seconds())
            network.peers.sum(torch.ones(4, device=self._device))
        except ViewBroken:
            pass
        alarm.join()
        network = self._connect(left, EPOCHS * each.number + 2)
        self._say(f"left/{each.number}", time.monotonic())
        # Until then somebody may still be summing.
        self._store.wait([f"replaced/{each.number}/{each.victim}"], PATIENCE)
        network.unblock()

    def _connect(self, servers: Sequence[Server], epoch: int) -> Any:
        view = View.among(servers, epoch)
        place = PrefixStore("ranks", self._store)
        network = connect(place, view, Server(self._rank, 0), self._options, check=lambda: None)
        total = torch.ones(4, device=self._device)
        network.peers.sum(total)
        if total.tolist() != [float(len(servers))] * 4:
            raise RuntimeError(f"epoch {epoch}: the sum of {len(servers)} ones is {total.tolist()}")
        return network

    def _await_alarm(self, number: int, give_up: Callable[[], None]) -> None:
        self._store.wait([f"alarm/{number}"], PATIENCE)
        give_up()

    def _say(self, word: str, value: float) -> None:
        self._store.set(f"{word}/{self._rank}", str(value))


def survive_kills(transport: TransportKind, kind: DeviceKind, kills: int) -> str:
    """Kill one of some ranks again and again, replace it, and see how soon the others sum without it.

    Args:
        transport: over which they sum.
        kind: of device.
        kills: how many.
    """
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    context = get_context("fork")
    pool = _Pool(context, port, transport, kind, kills)
    # The store has threads, which a fork would lose: all ranks that will ever be are forked before, and wait.
    store = TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    store.set_timeout(PATIENCE)
    made, survived = [], []
    try:
        for number in range(kills):
            victim = number % RANKS
            everybody = [f"whole/{number}/{rank}" for rank in range(RANKS)]
            store.wait(everybody, PATIENCE)
            bare = [f"bare/{number}/{rank}" for rank in range(RANKS) if rank != victim]
            made.append(max(float(store.get(key)) for key in bare))
            time.sleep(0.05)
            start = time.monotonic()
            pool.kill(victim)
            store.set(f"alarm/{number}", "")
            left = [f"left/{number}/{rank}" for rank in range(RANKS) if rank != victim]
            store.wait(left, PATIENCE)
            survived.append(max(float(store.get(key)) for key in left) - start)
            store.set(f"replaced/{number}/{victim}", "")
        pool.join()
    finally:
        pool.end()
    return (
        f"{RANKS} ranks on {kind} over {transport}, {kills} kills: 0 hangs, 0 wrong sums; median from kill to sum "
        f"{statistics.median(survived):.2f} s, most {max(survived):.2f} s; bare creation of the same "
        f"connections {statistics.median(made):.2f} s, most {max(made):.2f} s"
    )


class _Pool:
    """The ranks, and those that replace them."""

    def __init__(self, context: Any, port: int, transport: TransportKind, kind: DeviceKind, kills: int) -> None:
        self._present: dict[int, Any] = {}
        self._later: dict[int, list[Any]] = {rank: [] for rank in range(RANKS)}
        deaths = {rank: [number for number in range(kills) if number % RANKS == rank] for rank in range(RANKS)}
        for rank in range(RANKS):
            for place, first in enumerate([0, *(each + 1 for each in deaths[rank])]):
                died = deaths[rank][place - 1] if place else None
                process = context.Process(target=_live, args=(rank, port, transport, kind, range(first, kills), died))
                process.start()
                if place:
                    self._later[rank].append(process)
                else:
                    self._present[rank] = process

    def kill(self, rank: int) -> None:
        """A rank dies of SIGKILL; the next one in its place comes when it hears of that."""
        os.kill(self._present[rank].pid, signal.SIGKILL)
        self._present[rank].join()
        self._present[rank] = self._later[rank].pop(0)

    def join(self) -> None:
        """Wait for who still lives, and is through."""
        for each in self._present.values():
            each.join(PATIENCE.total_seconds())

    def end(self) -> None:
        """End all."""
        for each in [*self._present.values(), *(one for many in self._later.values() for one in many)]:
            each.kill()
            each.join()


def _live(rank: int, port: int, transport: TransportKind, kind: DeviceKind, rounds: range, died: int | None) -> None:
    torch.set_num_threads(1)
    store = TCPStore(HOST, port, is_master=False, timeout=timedelta(hours=2))
    if died is not None:
        store.wait([f"replaced/{died}/{rank}"], timedelta(hours=2))
    mourner = Mourner(rank, store, transport, kind)
    for number in rounds:
        mourner.live(Round(number, number % RANKS))
    os._exit(0)
