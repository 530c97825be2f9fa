"""Objects that a rank tells others, though it may be dead."""

from typing import Any

import torch.distributed as dist


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: dist.ProcessGroup | None = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Torch's function of this name, for groups whose dead are played by peers.

    Torch asks nobody but the source for its objects, so that whoever plays it would have nothing to say.
    """
    rows: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(rows, object_list, group=group)
    if group_src is None:
        source = 0 if src is None else src
        group_src = source if group is None else dist.get_group_rank(group, source)
    object_list[:] = rows[group_src]
