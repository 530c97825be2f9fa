"""What ranks of one server have for each other arrives, in parts of whatever length."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from recycle.megatron.shared.torch_calls import Calls

SIZE = 3


class Table:
    """A Carrier for threads."""

    def __init__(self):
        self._barrier = threading.Barrier(SIZE)
        self._rows = [None] * SIZE

    def of(self, rank):
        def gather(tensor):
            self._rows[rank] = tensor.clone()
            self._barrier.wait()
            found = list(self._rows)
            self._barrier.wait()
            return found

        return SimpleNamespace(gather=gather, reduce=lambda tensor, _: torch.stack(gather(tensor)).sum(0))


def on_all(act):
    """What each rank gets."""
    table = Table()
    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(lambda rank: act(Calls(table.of(rank), rank, SIZE, exchanges=True)), range(SIZE)))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.lists(st.integers(0, 3), min_size=SIZE, max_size=SIZE), min_size=SIZE, max_size=SIZE))
def test_each_gets_from_each_what_was_for_it(lengths):
    def part(source, target):
        return torch.full((lengths[source][target], 2), 10.0 * source + target)

    def act(group):
        output = torch.empty(sum(each[group.rank] for each in lengths), 2)
        tensor = torch.cat([part(group.rank, target) for target in range(SIZE)])
        received = [each[group.rank] for each in lengths]
        group.carry_out("all_to_all_single", output, tensor, received, lengths[group.rank], None)
        return output

    for target, found in enumerate(on_all(act)):
        assert torch.equal(found, torch.cat([part(source, target) for source in range(SIZE)]))


@pytest.mark.parametrize(
    ("swap", "deal"), [("all_to_all_single", "reduce_scatter_single"), ("alltoall_base", "_reduce_scatter_base")]
)
def test_equal_parts_need_not_be_counted_and_sums_are_dealt_out(swap, deal):
    def act(group):
        mine, dealt = torch.arange(6.0) + 10 * group.rank, torch.empty(2)
        swapped = torch.empty_like(mine)
        group.carry_out(swap, swapped, mine, [], [], None)
        group.carry_out(deal, dealt, mine, SimpleNamespace(reduceOp=ReduceOp.SUM))
        return swapped.tolist(), dealt.tolist()

    assert on_all(act) == [
        ([0, 1, 10, 11, 20, 21], [30, 33]),
        ([2, 3, 12, 13, 22, 23], [36, 39]),
        ([4, 5, 14, 15, 24, 25], [42, 45]),
    ]
