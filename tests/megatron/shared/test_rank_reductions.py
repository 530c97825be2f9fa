"""What the ranks of a server reduce together."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed import ReduceOp

from recycle.control.membership.view import ServerRank
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.runtime.net.network import Group, Several


class WithTheOther(Group):
    """A group of two ranks, of which the other one puts in what it is told."""

    def __init__(self, puts_in):
        self._puts_in = puts_in

    def start(self, kind, tensor):
        theirs = self._puts_in
        if tensor.dtype == torch.uint8:
            theirs = torch.stack([torch.zeros(len(theirs) * 4, dtype=torch.uint8), theirs.view(torch.uint8)])
        tensor.copy_(tensor + theirs if kind == "sum" else tensor.maximum(theirs))
        return Several()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (ReduceOp.SUM, [4.0, 1.0]),
        (ReduceOp.MAX, [3.0, 2.0]),
        (ReduceOp.MIN, [1.0, -1.0]),
        (ReduceOp.AVG, [2.0, 0.5]),
        (ReduceOp.PRODUCT, [3.0, -2.0]),
    ],
    ids=str,
)
def test_each_reduction_of_torch_is_carried_out(how, expected):
    collectives = RankCollectives(ServerRank(0, 2))
    collectives.connect(SimpleNamespace(ranks=WithTheOther(torch.tensor([3.0, -1.0]))))
    mine = torch.tensor([1.0, 2.0])
    assert collectives.reduce(mine, how).tolist() == expected
    assert mine.tolist() == [1.0, 2.0]
