"""Iteration time of a fault-free fused plan against Megatron's stock 1F1B, in pairs.

Usage: python -m benchmarks.overhead [--pairs 30]

Both run in the same processes over the same model, in turns, so that whatever else the machine does meets both alike.
A machine on which the stock schedule's own times differ too much gets no figure.
"""

import argparse
import sys
import time
from itertools import count

import msgspec
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from benchmarks.equivalence import job, plan
from benchmarks.pairs import judge, several
from recycle.megatron.flag.data.script_data import ScriptData
from recycle.megatron.flag.run.schedule import PlanSchedule, ThisRank
from recycle.megatron.flag.run.unprotected import UnprotectedExecution
from recycle.megatron.gpt.forward import forward_step, load_text
from recycle.megatron.gpt.model import ModelOptions, build_stage, transformer_config
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.plan.mode import Mode
from recycle.runtime.execute.stage import MicroBatch
from recycle.runtime.launch.process.local import LocalProcess, launch

OPTIONS = ModelOptions(layers=4, hidden=256, heads=8, sequence=128, micro_batch_size=2)
ALLOWED = 1.03


def body(member: LocalProcess, pairs: int) -> None:
    run_on_cpu()
    of = job(2, 2, 4)
    store = member.store()
    world = dist.PrefixStore("world", store)
    dist.init_process_group("gloo", store=world, rank=member.rank, world_size=member.count)
    parallel_state.initialize_model_parallel(1, of.depth)
    model_parallel_cuda_manual_seed(0)
    config = transformer_config(OPTIONS, of.depth)
    here = ThisRank.find()
    server = here.server
    model = build_stage(OPTIONS, config, server.stage, of.depth, ProcessGroupCollection.use_mpu_process_groups())
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    config.no_sync_func = model.no_sync
    config.finalize_model_grads_func = finalize_model_grads
    fused, data = plan(of, Mode("fused", "global")), ScriptData(server.pipeline, lambda: 0)
    execution = UnprotectedExecution(fused, here, store)
    schedules = [get_forward_backward_func(), PlanSchedule(fused, server, data, count().__next__, 0, execution)]
    text = load_text(None, OPTIONS)
    batches = [text.samples(MicroBatch(0, server.pipeline, number)) for number in range(of.micro_batches)]
    times: list[list[float]] = [[], []]
    for turn in range(2 * (pairs + 3)):
        # Either goes first in every other pair.
        which = (turn + turn // 2) % 2
        model.zero_grad_buffer()
        dist.barrier()
        start = time.perf_counter()
        schedules[which](
            forward_step_func=forward_step,
            data_iterator=iter(batches),
            model=[model],
            num_microbatches=of.micro_batches,
            seq_length=OPTIONS.sequence,
            micro_batch_size=OPTIONS.micro_batch_size,
        )
        dist.barrier()
        times[which].append(time.perf_counter() - start)
    if member.rank == 0:
        member.report(msgspec.json.encode([series[3:] for series in times]))
    dist.barrier()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=several, default=30)
    pairs = parser.parse_args().pairs
    found: list[list[list[float]]] = []
    launch(
        4,
        lambda member: body(member, pairs),
        lambda _, content: found.append(msgspec.json.decode(content, type=list[list[float]])),
    )
    stock, ours = found[0]
    title = f"PP 2 x DP 2, {OPTIONS.layers} layers of {OPTIONS.hidden}"
    return judge(title, ("stock 1F1B", "fused plan"), (stock, ours), ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
