"""What a feature costs while nothing fails, against the same run without it, in turns.

Usage: python -m benchmarks.costs protection [--starts 3] [--pairs 12] [--seconds 2] [--sequence 64 256] [--shape 3x4]
       python -m benchmarks.costs copies [--alone] [--copies 1] [--starts 3] [--pairs 12] [--seconds 2]
           [--sequence 256] [--shape 3x4]
       python -m benchmarks.costs watching [--starts 3] [--rounds 12] [--seconds 2] [--shape 3x4]
       python -m benchmarks.costs exact [--pairs 20] [--hidden 256] [--sequence 256] [--micro-batch-size 4]

Two runs with the real model, of 12 processes if nothing is said, are there all the time and take turns
(``benchmarks.shared``). Two runs differ by some percent for as long as they live, whatever they do, so both are
started several times; the interval is for the median ratio, from starts and pairs that are drawn again and again.

``protection``: agents, heartbeats and kept versions. With 64 tokens in a sample, the default of ``recycle train``,
there are so few of them for each parameter that the copy of the state before a step weighs more than in any real run.

``copies``: copies of every iteration's state in memory. With ``--alone`` each run has one server, with a state of 80
MB, and leaves a core free. With ``--copies 2`` each part also goes to a keeper as on another host, whose time of the
processor is not the run's.

``watching``: one run in rounds of three turns: unwatched, watched, unwatched. In a watched turn the page's questions
are asked as the page asks them, twice a second. What a browser takes to draw is not counted.

``exact``: exact sums of gradients against plain ones, in turns in the same processes, on models of the same size.
"""

import argparse
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch
from urllib.request import urlopen

import msgspec

from benchmarks.shared import (
    PAPER,
    Contestant,
    Length,
    add_shape,
    add_starts,
    interval,
    paper_shaped,
    race,
    run_part,
)
from harness.local import LocalProcess, launch
from harness.unprotected import train_unprotected
from recycle.cli.run.model import quiet
from recycle.control.board.joinfile import new_token
from recycle.control.membership.view import View
from recycle.faults.menu import Faults
from recycle.job import Job, Stage
from recycle.jobfile import load_job
from recycle.megatron.gpt.forward import forward_step, load_text
from recycle.megatron.gpt.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.gpt.training import train
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place, join_server
from recycle.plan.mode import Mode
from recycle.planner.make import Effort, make_plan
from recycle.planner.model.stopping import MaxMoves
from recycle.planner.source import plan_maker
from recycle.record.recorder import Recorder
from recycle.record.recording import IterationLine, Line
from recycle.runtime.execute.worker import Worker
from recycle.runtime.keep.keeper_copies import KnownKeepers
from recycle.runtime.launch.meet.keepers import KeeperFinder
from recycle.runtime.net.connect import connect
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.update import TorchUpdate
from recycle.state.client import KeeperClient
from recycle.state.directory import KeeperDirectory
from recycle.state.keeper import listen_to_hosts, serve
from recycle.state.redundancy import Redundancy

ALLOWED_MIDDLE, ALLOWED = 1.01, 1.02
ALONE = {"pipelines": 1, "stages": 1, "limit": 6}
"""The keys of the job of one server."""
# As many iterations as nobody waits for; the runs are ended from outside.
ENDLESS = 1_000_000


def start(
    job: Job,
    folder: Path,
    sequence: int,
    protected: bool,
    redundancy: Redundancy | None = None,
    *,
    alone: bool = False,
) -> Contestant:
    """Begin a run.

    Args:
        job: that is trained, unless it is one server's.
        folder: of the run.
        sequence: tokens in a sample.
        protected: whether it survives failures.
        redundancy: how hosts keep its state in memory; None where they do not.
        alone: whether it is one server with a larger state, so that it leaves a core to others.
    """
    receiver, done = Pipe(duplex=False)
    process = os.fork()
    if not process:
        # Ctrl-C is not for it.
        os.setsid()
        plan = plan_maker(load_job(PAPER, ALONE) if alone else job, Mode())(())
        options = ModelOptions(dropout=0.1, sequence=sequence)
        if alone:
            options = msgspec.structs.replace(options, layers=2, hidden=512, heads=8)
        _train(Run(plan, options, ENDLESS, folder, redundancy=redundancy), protected, done)
        os._exit(1)  # it does not come to its end
    done.close()
    return Contestant(process, receiver.recv_bytes)


def _train(run: Run, protected: bool, done: Connection) -> None:
    told: dict[int, int] = {}

    def watch(line: Line) -> None:
        if isinstance(line, IterationLine):
            told[line.step] = told.get(line.step, 0) + 1
            if told[line.step] == len(run.plan.programs):
                del told[line.step]
                done.send_bytes(b"")

    if protected:
        train(run, watch, plan_maker(run.plan.job, run.plan.mode), Faults())
    else:
        train_unprotected(run, watch)


def measure_protection(job: Job, sequence: int, pairs: int, seconds: float) -> list[float]:
    """Print what a protected iteration takes and what the same one without, in one start of both; gives the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        starts = [partial(start, job, Path(folder) / str(each), sequence, each) for each in (False, True)]
        turns = race(starts, ("unprotected", "protected"), pairs, seconds)
    return [ours.clock / stock.clock for stock, ours in turns]


def protection() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_starts(parser)
    parser.add_argument("--sequence", type=int, nargs="+", default=[64, 256], help="tokens in a sample; four samples")
    add_shape(parser)
    arguments = parser.parse_args()
    quiet()
    job = paper_shaped(arguments.shape)
    missed = False
    for sequence in arguments.sequence:
        print(f"{4 * sequence} tokens in a micro-batch, {arguments.starts} starts, {arguments.pairs} pairs each:")
        starts = [
            measure_protection(job, sequence, arguments.pairs, arguments.seconds) for _ in range(arguments.starts)
        ]
        low, middle, high = interval(starts)
        print(f"by the clock {middle:.3f}, with 95% between {low:.3f} and {high:.3f}")
        missed |= middle > ALLOWED_MIDDLE or high > ALLOWED
    print(f"load {os.getloadavg()[0]:.1f}; {ALLOWED_MIDDLE} is allowed, and {ALLOWED} at the interval's end")
    return int(missed)


OTHERS_MEMORY = 10**9
"""Bytes that another host's keeper may hold."""
LOOPBACK = "127.0.0.1"
ALLOWED_COPIES = 1.01


def measure_copies(job: Job, copies: int, pairs: int, seconds: float, sequence: int, *, alone: bool) -> list[float]:
    """Print what an iteration takes with and without copies, in one start of both; gives the ratios."""
    with tempfile.TemporaryDirectory() as folder, other_hosts(copies - 1):
        begin = partial(start, job, alone=alone)
        starts = [partial(begin, Path(folder) / str(each), sequence, True, each) for each in (None, Redundancy(1, 1))]
        turns = race(starts, ("off", f"copies={copies}"), pairs, seconds)
    return [ours.clock / stock.clock for stock, ours in turns]


@contextmanager
def other_hosts(count: int) -> Iterator[None]:
    """Within the block, runs begin on one host that have keepers of so many others beside their own."""
    token = new_token()
    clients: list[KeeperClient] = []
    with ExitStack() as keepers:
        for number in range(count):
            with listen_to_hosts(LOOPBACK) as door:
                keepers.enter_context(keeper_process([door], token, OTHERS_MEMORY))
                clients.append(KeeperClient((LOOPBACK, door.getsockname()[1]), token, f"other keeper {number}"))
        find, host_names = KeeperFinder.find, KeeperDirectory.host_names

        def find_all(finder: KeeperFinder) -> KnownKeepers:
            known = find(finder)
            return known._replace(own=[*known.own, *clients], redundancy=Redundancy(1, len(known.own) + count))

        def name_all(directory: KeeperDirectory, address: str) -> Mapping[str, str]:
            return {**host_names(directory, address), **{each.name: each.name for each in clients}}

        with patch.object(KeeperFinder, "find", find_all), patch.object(KeeperDirectory, "host_names", name_all):
            yield
        assert all(each.copies() for each in clients), "another host's keeper got nothing"


@contextmanager
def keeper_process(listeners: Sequence[socket.socket], token: str, limit: int) -> Iterator[int]:
    """Within the block, a keeper is there; gives its process."""
    keeper = multiprocessing.get_context("fork").Process(target=serve, args=(listeners, token, limit), daemon=True)
    keeper.start()
    assert keeper.pid is not None
    try:
        yield keeper.pid
    finally:
        keeper.kill()
        keeper.join()


def copies() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--alone", action="store_true", help="one server, with a larger state")
    parser.add_argument("--copies", type=int, default=1, choices=(1, 2), help="hosts that hold it, its own among them")
    parser.add_argument("--sequence", type=int, default=256, help="tokens in a sample; four samples")
    add_starts(parser)
    add_shape(parser)
    arguments = parser.parse_args()
    quiet()
    job, pairs, seconds = paper_shaped(arguments.shape), arguments.pairs, arguments.seconds
    low, middle, high = interval(
        [
            measure_copies(job, arguments.copies, pairs, seconds, arguments.sequence, alone=arguments.alone)
            for _ in range(arguments.starts)
        ]
    )
    print(f"by the clock {middle:.3f}, with 95% between {low:.3f} and {high:.3f}; {ALLOWED_COPIES} is allowed")
    return int(middle > ALLOWED_COPIES)


WATCH = "from recycle.cli import main; main()"
PAUSE = 0.5
"""Seconds between two looks, as in ``view/page/live.js``."""


class Viewer:
    """Asks a served page's questions, as long as it looks.

    Args:
        address: of the page.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._version = -1

    def look(self) -> None:
        """Look once: how the run stands, and its time line if anything is new."""
        with urlopen(f"{self._address}state") as answer:
            version = msgspec.json.decode(answer.read())["version"]
        if version != self._version:
            self._version = version
            with urlopen(f"{self._address}timeline") as answer:
                answer.read()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look again and again meanwhile."""
        enough = threading.Event()

        def keep_looking() -> None:
            while not enough.wait(PAUSE):
                self.look()

        # What was written while nobody looked is none of this turn's cost.
        self.look()
        thread = threading.Thread(target=keep_looking)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()


def take_rounds(run: Contestant, viewer: Viewer, rounds: int, seconds: float) -> list[tuple[Length, Length, Length]]:
    """Rounds of an unwatched turn, a watched one, and an unwatched one."""
    found = []
    for _ in range(rounds):
        before = run.turn(seconds)
        with viewer.looking():
            watched = run.turn(seconds)
        found.append((before, watched, run.turn(seconds)))
    return found


def measure_watching(job: Job, rounds: int, seconds: float) -> tuple[list[float], list[float]]:
    """In one start of a run: what watched turns take over unwatched ones, and unwatched ones over unwatched ones."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        run = start(job, folder, 64, True)
        words = [sys.executable, "-c", WATCH, "watch", str(folder), "--port", "0"]
        serving = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        try:
            assert serving.stderr is not None
            said = re.search(r"http://\S+", serving.stderr.readline())
            assert said is not None
            found = take_rounds(run, Viewer(said[0]), rounds, seconds)
        finally:
            serving.kill()
            serving.wait()
            run.end()
    watched = [2 * each.clock / (before.clock + after.clock) for before, each, after in found]
    return watched, [after.clock / before.clock for before, _, after in found]


def watching() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_starts(parser, "rounds", "of three turns, in each start")
    add_shape(parser)
    arguments = parser.parse_args()
    quiet()
    starts = [
        measure_watching(paper_shaped(arguments.shape), arguments.rounds, arguments.seconds)
        for _ in range(arguments.starts)
    ]
    low, middle, high = interval([watched for watched, _ in starts])
    unwatched = [ratio for _, ratios in starts for ratio in ratios]
    quarters = statistics.quantiles(unwatched, n=4)
    print(f"{arguments.starts} starts, {arguments.rounds} rounds each, load {os.getloadavg()[0]:.1f}")
    print(f"watched over unwatched {middle:.3f}, with 95% between {low:.3f} and {high:.3f}")
    print(f"unwatched over unwatched {quarters[1]:.3f}, middle half {quarters[0]:.3f} to {quarters[2]:.3f}")
    return int(middle - 1 > quarters[2] - quarters[0])


ALLOWED_EXACT = 1.15
PLAN = make_plan(
    Job(2, 4, (Stage(2, 2, 1, 1, 0, 1, 0, 4),) * 2, (0,)), (), Mode(), Effort((MaxMoves(500),), "500 moves")
)
UNCOUNTED = 3


class Times(msgspec.Struct):
    """Of one server: seconds of every iteration by the clock and of the processor, plain and exact."""

    clock: tuple[list[float], list[float]]
    processor: tuple[list[float], list[float]]
    parameters: int


def make_worker(member: LocalProcess, options: ModelOptions, groups: object, exact: bool) -> tuple[Worker, int]:
    of = PLAN.job
    view = View.of(PLAN, epoch=int(exact))
    server = view.servers[member.rank]
    config = transformer_config(options, of.depth)
    model = build_stage(options, config, server.stage, of.depth, groups)
    text = load_text(None, options)
    shape = (options.sequence, options.micro_batch_size, options.hidden)
    place = Place(server.stage, of.depth)
    stage = MegatronStage(model, place, shape, of.micro_batches, forward_step, text)
    method = Method(1e9, True, of.pipelines * of.micro_batches if exact else 0)
    update = TorchUpdate(
        MainParameters(stage.parameters()), options.make_optimizer, of.pipelines, [server.stage], of.depth, method
    )
    network = connect(member.store(), view, server)
    update.enter(network, 0)
    update.connect(network)
    count = sum(each.numel() for each in model.parameters())
    return Worker(PLAN, [stage], update, network, Recorder(server)), count


def alternate(member: LocalProcess, pairs: int, options: ModelOptions) -> None:
    run_on_cpu()
    groups = join_server(View.of(PLAN).servers[member.rank], PLAN.job.depth)
    made = [make_worker(member, options, groups, exact) for exact in (False, True)]
    times = Times(([], []), ([], []), made[0][1])
    steps = [0, 0]
    for turn in range(2 * (pairs + UNCOUNTED)):
        # Either goes first in every other pair.
        which = (turn + turn // 2) % 2
        worker = made[which][0]
        start, spent = time.perf_counter(), time.process_time()
        worker.run(steps[which])
        worker.settle()
        times.clock[which].append(time.perf_counter() - start)
        times.processor[which].append(time.process_time() - spent)
        steps[which] += 1
    member.report(msgspec.json.encode(times))


def exact() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--micro-batch-size", type=int, default=4)
    arguments = parser.parse_args()
    options = ModelOptions(2, arguments.hidden, 4, arguments.sequence, micro_batch_size=arguments.micro_batch_size)
    found: list[Times] = []
    launch(
        4,
        lambda member: alternate(member, arguments.pairs, options),
        lambda _, content: found.append(msgspec.json.decode(content, type=Times)),
    )
    print(
        f"PP 2 x DP 2, {options.layers} layers of {options.hidden}, {options.micro_batch_size} x {options.sequence} "
        f"tokens in a micro-batch, {found[0].parameters / 1e6:.2f} M parameters in a stage, {arguments.pairs} pairs, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    ratios = []
    for name, series in (("clock", [each.clock for each in found]), ("processor", [each.processor for each in found])):
        plain, summed = ([each[which][UNCOUNTED:] for each in series] for which in (0, 1))
        # By the clock, the slowest server counts; of the processor's time, all of it.
        total = max if name == "clock" else sum
        pairs = [
            (total(one), total(other))
            for one, other in zip(zip(*plain, strict=True), zip(*summed, strict=True), strict=True)
        ]
        ratios.append(statistics.median(exact / plain for plain, exact in pairs))
        medians = [statistics.median(each) * 1e3 for each in zip(*pairs, strict=True)]
        print(f"{name:<10} plain {medians[0]:8.1f} ms, exact {medians[1]:8.1f} ms, median ratio {ratios[-1]:.3f}")
    print(f"{ALLOWED_EXACT} is allowed")
    return int(ratios[0] > ALLOWED_EXACT)


if __name__ == "__main__":
    sys.exit(run_part(__doc__, {"protection": protection, "copies": copies, "watching": watching, "exact": exact}))
