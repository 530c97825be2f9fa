"""GPUs under the flag: what carries tensors between servers, and what of torch's NCCL is not begun at all.

A process group of torch's over NCCL ends its process when a member is gone: its watchdog does, or a call that never
returns. So where a run is to outlive its servers, Megatron's groups are gloo's, and carry its set-up through host
memory. From the first schedule on, whatever is called in them goes over the network of the present view, which gives
its own communicators up.
"""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from recycle.megatron.shared.delayed_weights import DELAYS
from recycle.megatron.shared.patching import replace
from recycle.runtime.device import place_among_gpus
from recycle.runtime.errors import RunError
from recycle.runtime.net.nccl.bindings import Nccl
from recycle.runtime.net.network import TransportKind
from recycle.runtime.net.process_groups import ReplaceableGroup

ENGINE = "transformer_engine"
DELAYS_APART = "2.7.0"
"""The release from which Megatron has layers leave weight gradients that they do not add up themselves."""


def transport_of(backend: str) -> TransportKind:
    """What carries the tensors of a job's stages.

    Args:
        backend: of torch.distributed, that the job asks for.
    """
    if backend == "nccl":
        return "nccl"
    return "staged" if torch.cuda.is_available() else "gloo"


def tell_which_gpu() -> None:
    """Tell Megatron which GPU to take: it knows one launcher's variable, and that each rank of a host sees all GPUs."""
    os.environ["LOCAL_RANK"] = str(place_among_gpus(0))


def lacks_nccl() -> str:
    """Why NCCL cannot carry anything on this machine; empty if it can."""
    if not torch.cuda.is_available():
        return "this machine has no CUDA"
    try:
        Nccl()
    except RunError as error:
        return str(error)
    return ""


def keep_groups_on_host() -> None:
    """Have torch make gloo's groups where Megatron asks for NCCL's; what it sets for their communicators is kept."""
    own: Callable[..., Any] = torch.distributed.init_process_group

    @wraps(own)
    def init_process_group(backend: str | None = None, *positional: Any, **keywords: Any) -> Any:
        return own("gloo" if backend == "nccl" else backend, *positional, **keywords)

    replace(torch.distributed, "init_process_group", init_process_group)
    own_group: Callable[..., Any] = torch.distributed.new_group

    @wraps(own_group)
    def new_group(*positional: Any, pg_options: Any = None, **keywords: Any) -> Any:
        group = own_group(*positional, **keywords)
        if isinstance(group, ReplaceableGroup):
            group.settings = pg_options
        return group

    replace(torch.distributed, "new_group", new_group)


def cannot_delay(arguments: Any) -> list[str]:
    """Why layers of the release that is installed cannot leave their weight gradients; empty if they can.

    Args:
        arguments: Megatron's.
    """
    if arguments.transformer_impl != ENGINE:
        return []
    from megatron.core.utils import get_te_version, is_te_min_version

    needed = DELAYS if arguments.gradient_accumulation_fusion else DELAYS_APART
    if is_te_min_version(needed):
        return []
    return [f"transformer_impl is {ENGINE}: release {get_te_version()} leaves no weight gradients; {needed} does"]
