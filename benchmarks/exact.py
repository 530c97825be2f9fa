"""Iteration time and memory with exact sums of gradients against those with plain ones, in pairs.

Usage: python -m benchmarks.exact [--pairs 20] [--hidden 256] [--sequence 256] [--micro-batch-size 4]

Both run in the same processes, in turns, on models of the same size, so that whatever else the machine does meets both
alike. Where others use the machine, the processor's own time says more than the clock; both are shown.
"""

import argparse
import os
import statistics
import sys
import time

import msgspec

from benchmarks.equivalence import job, plan
from recycle.control.membership.view import View
from recycle.megatron.gpt.forward import forward_step, load_text
from recycle.megatron.gpt.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.stage import MegatronStage
from recycle.megatron.shared.world import Place, join_server
from recycle.plan.mode import Mode
from recycle.record.recorder import Recorder
from recycle.runtime.execute.worker import Worker
from recycle.runtime.launch.process.local import LocalProcess, launch
from recycle.runtime.net.connect import connect
from recycle.runtime.step.main_parameters import MainParameters
from recycle.runtime.step.method import Method
from recycle.runtime.step.update import TorchUpdate

ALLOWED = 1.15
PLAN = plan(job(2, 2, 4), Mode())
WARM_UP = 3


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


def body(member: LocalProcess, pairs: int, options: ModelOptions) -> None:
    run_on_cpu()
    groups = join_server(View.of(PLAN).servers[member.rank], PLAN.job.depth)
    made = [make_worker(member, options, groups, exact) for exact in (False, True)]
    times = Times(([], []), ([], []), made[0][1])
    steps = [0, 0]
    for turn in range(2 * (pairs + WARM_UP)):
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


def main() -> int:
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
        lambda member: body(member, arguments.pairs, options),
        lambda _, content: found.append(msgspec.json.decode(content, type=Times)),
    )
    print(
        f"PP 2 x DP 2, {options.layers} layers of {options.hidden}, {options.micro_batch_size} x {options.sequence} "
        f"tokens in a micro-batch, {found[0].parameters / 1e6:.2f} M parameters in a stage, {arguments.pairs} pairs, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    ratios = []
    for name, series in (("clock", [each.clock for each in found]), ("processor", [each.processor for each in found])):
        plain, exact = ([each[which][WARM_UP:] for each in series] for which in (0, 1))
        # By the clock, the slowest server counts; of the processor's time, all of it.
        total = max if name == "clock" else sum
        pairs = [
            (total(one), total(other))
            for one, other in zip(zip(*plain, strict=True), zip(*exact, strict=True), strict=True)
        ]
        ratios.append(statistics.median(exact / plain for plain, exact in pairs))
        medians = [statistics.median(each) * 1e3 for each in zip(*pairs, strict=True)]
        print(f"{name:<10} plain {medians[0]:8.1f} ms, exact {medians[1]:8.1f} ms, median ratio {ratios[-1]:.3f}")
    print(f"{ALLOWED} is allowed")
    return int(ratios[0] > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
