"""Where a process of a run computes."""

from importlib.util import find_spec

import torch

from recycle.control.membership.view import ServerRank
from recycle.job import Server
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run import Run
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.runtime.device import DeviceKind, require_device, take_device
from recycle.runtime.errors import RunError


def require_means(options: ModelOptions, kind: DeviceKind) -> None:
    """Refuse a device or layers that this machine has not got; for a process that will fork those that compute.

    Raises:
        RunError: they are missing, or do not go together.
    """
    require_device(kind)
    if not options.transformer_engine:
        return
    if kind == "cpu":
        raise RunError("transformer_engine is on: its layers compute on GPUs; give --device cuda, or turn it off")
    if find_spec("transformer_engine") is None:
        raise RunError("transformer_engine is on, and is not installed: install it, or turn it off")


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
