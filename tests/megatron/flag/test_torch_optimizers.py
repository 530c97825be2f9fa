"""Where stages step on their own, Megatron's optimizers are those whose steps they can take back."""

import pytest
import torch
from megatron.core import optimizer as megatron_optimizers
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from harness.gpt_runs import OPTIONS
from harness.group_counting_adam import GroupCountingAdam
from harness.local import launch
from recycle.job import Server
from recycle.megatron.flag.device.torch_optimizers import take_torch_optimizers
from recycle.megatron.gpt.model import transformer_config
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.world import join_server
from recycle.runtime.step.optimizers import require_supported


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_fused_optimizer_that_is_installed_is_left_alone(name):
    """One that is fused needs CUDA, and another one stands for it."""

    def body(_):
        run_on_cpu()
        join_server(Server(0, 0), 1)
        megatron_optimizers.USING_PYTORCH_OPTIMIZER = False
        megatron_optimizers.Adam = megatron_optimizers.SGD = GroupCountingAdam
        take_torch_optimizers()
        config = transformer_config(OPTIONS, 1)
        model = DistributedDataParallel(config, DistributedDataParallelConfig(), torch.nn.Linear(4, 4))
        made = get_megatron_optimizer(OptimizerConfig(optimizer=name, lr=0.1), [model], use_gloo_process_groups=False)
        require_supported(made.chained_optimizers[0].optimizer)

    launch(1, body)
