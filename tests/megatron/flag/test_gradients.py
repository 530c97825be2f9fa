"""Gradients are weighted as Megatron weights them, whichever of its ways it is told to take."""

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

from harness.gpt_runs import OPTIONS
from recycle.job import Server
from recycle.megatron.flag.steps.gradients import factor_of
from recycle.megatron.gpt.model import transformer_config
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.world import join_server
from recycle.runtime.launch.process.local import launch


def test_where_megatron_would_make_the_mean_in_a_collective_the_sum_is_divided():
    found = []

    def body(member):
        run_on_cpu()
        join_server(Server(0, 0), 1)
        parallel_state.get_data_parallel_group(with_context_parallel=True).counted = (0, 4)
        for average in (False, True):
            config = DistributedDataParallelConfig(average_in_collective=average)
            model = DistributedDataParallel(transformer_config(OPTIONS, 1), config, torch.nn.Linear(2, 2))
            (buffer,) = model.buffers
            assert buffer.gradient_scaling_factor == (1 if average else 0.25)
            assert factor_of(buffer) == 0.25
        member.report(b"done")

    launch(1, body, lambda rank, payload: found.append(payload))
    assert found == [b"done"]
