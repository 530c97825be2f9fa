"""Torch's own groups over NCCL, for ranks that live and die together."""

import os
from typing import Any

from torch.distributed import Store

from recycle.runtime.net.network import NetworkOptions

LONGER = 4
"""So many times what a transfer may take, a call may be on its way before torch ends the process. Whatever holds up a
rank that another one waits for, a neighbour's death too, is over by then, or this server is lost."""


def make_device_backend(store: Store, rank: int, size: int, options: NetworkOptions, settings: Any = None) -> Any:
    """This rank's part of a group for tensors on its GPU. Its communicator is made with the first call.

    Args:
        store: where the ranks find each other; nobody else uses it.
        rank: of this one.
        size: of the group.
        options: how long they wait.
        settings: torch's options of the communicator; None for the usual ones.
    """
    # Builds for CPUs lack it.
    from torch.distributed import ProcessGroupNCCL

    # It would end processes whose watchdog was kept waiting, as by another communicator's abort.
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    settings = settings or ProcessGroupNCCL.Options()
    settings._timeout = LONGER * options.transfer_timeout  # noqa: SLF001 - as torch's own groups are given it
    return ProcessGroupNCCL(store, rank, size, settings)
