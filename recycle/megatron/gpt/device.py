"""Where a process of a run computes."""

import torch

from recycle.control.membership.view import ServerRank
from recycle.job import Server
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run_settings import Run
from recycle.megatron.shared.cpu import run_on_cpu
from recycle.runtime.device import DeviceKind, require_device, take_device
from recycle.runtime.errors import RunError
from recycle.state.host_memory import total_memory
from recycle.wording import memory_text

LAYER = 1 << 14
"""Bytes that a layer takes at least, however narrow it is."""


def require_means(options: ModelOptions, kind: DeviceKind, depth: int) -> None:
    """Refuse a device or a size that this machine has not got; for a process that will fork those that compute.

    Args:
        options: the model.
        kind: of device.
        depth: into how many stages or chunks it is cut.

    Raises:
        RunError: it is missing.
    """
    require_device(kind)
    _require_memory(options, depth)


def _require_memory(options: ModelOptions, depth: int) -> None:
    """Refuse what cannot be in the memory of this host by far: without its gradients, and without what steps it."""
    has = total_memory()
    weights = 12 * options.hidden**2 // options.tensor_parallel
    layers = options.layers // depth * max(4 * weights, LAYER)
    embedding = 4 * options.vocabulary * options.hidden // options.tensor_parallel
    batch = 4 * options.micro_batch_size * options.sequence * options.hidden
    for fields, takes, what in (
        (("layers", "hidden"), layers, "the layers of one stage take"),
        (("vocabulary", "hidden"), embedding, "the embedding takes"),
        (("micro_batch_size", "sequence", "hidden"), batch, "one micro-batch takes"),
    ):
        if takes > has:
            given = " and ".join(f"{each} is {getattr(options, each)}" for each in fields)
            sizes = f"{memory_text(takes, 'byte')}, and this host may use {memory_text(has, 'byte')}"
            raise RunError(f"{given}: {what} {sizes}; lower {' or '.join(fields)}")


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
