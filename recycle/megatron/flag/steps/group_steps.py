"""How many steps an optimizer has made, where it counts them in its groups: Transformer Engine's Adam does, and Apex's.

What torch's optimizers count is with each parameter, among its moments, and travels with these.
"""

import torch

COUNT, UNKNOWN = "step", -1
"""What a group calls its count, and what stands for the count of a group that has none."""


def read_group_steps(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """The counts of an optimizer's groups, in their order."""
    return torch.tensor([int(group.get(COUNT, UNKNOWN)) for group in optimizer.param_groups])


def write_group_steps(optimizer: torch.optim.Optimizer, counts: torch.Tensor) -> None:
    """Have an optimizer's groups go on from such counts."""
    for group, count in zip(optimizer.param_groups, counts.tolist(), strict=True):
        if count == UNKNOWN:
            group.pop(COUNT, None)
        else:
            group[COUNT] = count
