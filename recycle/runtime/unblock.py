"""How a thread that waits in a process group is set free by another one.

A collective in which somebody is gone may hang until its time-out, and so does a receive from a live server that is
itself stuck. Neither ``abort`` nor ``shutdown`` of a gloo group wakes who waits in it; the expiry of a wait does,
because it closes all connections of the group. So a receive that nobody will answer is waited for, for a millisecond.
It is a side effect of this release of torch and no promise of its interface; a test holds it.
"""

from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo

# No transfer of a plan has it, and neither has the number of tokens.
TAG = 2**31 - 1
EXPIRED = "Timed out"
MILLISECOND = timedelta(milliseconds=1)


def unblock(group: Any) -> None:
    """Make everything that waits in a group raise, here and at its direct partners; the group is of no use after it.

    Args:
        group: a backend of gloo, or one that can be aborted, as NCCL's.
    """
    if not isinstance(group, ProcessGroupGloo):
        group.abort()
        return
    backend: Any = group
    for partner in range(group.size()):
        if partner == group.rank():
            continue
        try:
            backend.recv([torch.empty(1)], partner, TAG).wait(MILLISECOND)
        except RuntimeError as error:
            # Where the partner is gone already, the receive fails at once, and closes no other connection.
            if EXPIRED in str(error):
                return
