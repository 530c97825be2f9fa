"""Where a process of a run computes."""

import torch

from recycle.control.view import ServerRank
from recycle.job import Server
from recycle.megatron.gpt.run import Run
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.runtime.device import DeviceKind, take_device


def compute_on(kind: DeviceKind, number: int) -> torch.device:
    """Have this process compute on a device, from its first look at CUDA on: after it was forked.

    Args:
        kind: of device.
        number: of this process among those of its host; see ``take_device``.
    """
    if kind == "cpu":
        run_on_cpu()
    return take_device(kind, number)


def prepare_device(run: Run, server: Server, rank: ServerRank) -> torch.device:
    """Have this process compute where its run does.

    Args:
        run: what is trained.
        server: whose process it is.
        rank: of the server.
    """
    number = list(run.plan.job.servers()).index(server) * rank.size + rank.number
    return compute_on(run.device, number)
