"""One gloo device for all process groups of a rank.

Torch gives each group a device of its own, whose thread wakes up a hundred times a second. Megatron makes some twenty
groups in every rank, so these threads take a tenth of the time of a job on CPUs.
"""

import os
from contextlib import ExitStack
from functools import cache, wraps
from typing import Any

from torch.distributed import ProcessGroupGloo

from recycle.runtime.net.gloo.listeners import Listener, make_device

INTERFACES = "GLOO_SOCKET_IFNAME"


def share_devices(address: str = "") -> None:
    """Have the groups that torch makes from now on use the same devices.

    Args:
        address: of this machine, where no interface is named; if empty, torch looks up the machine's name, which may be
            that of no network.
    """
    gloo: Any = ProcessGroupGloo  # the stubs leave most of it out
    own_init = gloo.__init__

    @cache
    def devices() -> list[tuple[Any, Listener]]:
        names = os.environ.get(INTERFACES)
        if names:
            return [make_device(gloo.create_device, interface=name) for name in names.split(",")]
        return [
            make_device(gloo.create_device, hostname=address) if address else make_device(gloo.create_default_device)
        ]

    @wraps(own_init)
    def init(self: Any, store: Any, rank: int, size: int, *options: Any, **timeout: Any) -> None:
        if options or list(timeout) != ["timeout"]:
            own_init(self, store, rank, size, *options, **timeout)
            return
        shared = gloo._Options()  # noqa: SLF001 - the only way to choose devices
        shared._devices = [each for each, _ in devices()]  # noqa: SLF001
        shared._timeout = timeout["timeout"]  # noqa: SLF001
        shared._threads = 2 * len(devices())  # noqa: SLF001
        with ExitStack() as listeners:
            for _, listener in devices():
                listeners.enter_context(listener.open())
            # It returns when all ranks of the group have connected.
            own_init(self, store, rank, size, shared)

    gloo.__init__ = init
