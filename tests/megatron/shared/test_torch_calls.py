"""What ranks of one server have for each other arrives, in parts of whatever length."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from recycle.megatron.shared.torch_calls import Calls, Pairs
from recycle.runtime.errors import RunError

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

    def act_as(rank):
        carrier = table.of(rank)
        return act(Calls(carrier, rank, SIZE, Pairs(carrier, rank)))

    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(act_as, range(SIZE)))


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


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 3), min_size=SIZE, max_size=SIZE))
def test_parts_of_unequal_length_are_gathered_and_their_sums_dealt_out(lengths):
    """As tokens are among ranks that have a part of the same experts."""

    def act(group):
        mine = torch.full((lengths[group.rank], 2), 1.0 + group.rank)
        gathered = [torch.empty(length, 2) for length in lengths]
        group.carry_out("allgather", [gathered], [mine], None)
        dealt = torch.empty(lengths[group.rank], 2)
        sums = SimpleNamespace(reduceOp=ReduceOp.SUM)
        group.carry_out("reduce_scatter", [dealt], [[each * (1 + group.rank) for each in gathered]], sums)
        return gathered, dealt

    for rank, (gathered, dealt) in enumerate(on_all(act)):
        for source, found in enumerate(gathered):
            assert torch.equal(found, torch.full((lengths[source], 2), 1.0 + source))
        assert torch.equal(dealt, torch.full((lengths[rank], 2), 6.0 * (1 + rank)))


def in_a_ring(group, tensor, step=1):
    """Send to the next and receive from the one before, as Transformer Engine does: every other rank receives first."""
    received = torch.empty_like(tensor)
    halves = [("send", tensor, group.rank + step), ("recv", received, group.rank - 1)]
    order = halves if group.rank % 2 == 0 else halves[::-1]
    waits = [group.carry_out(name, [each], partner % SIZE, 0) for name, each, partner in order]
    return waits, received


def test_round_a_ring_each_gets_what_the_one_before_has():
    def act(group):
        waits, first = in_a_ring(group, torch.tensor([10.0 * group.rank, 1.0]))
        again, second = in_a_ring(group, torch.tensor([[group.rank]]))
        for wait in (*waits, *again):
            wait()
        return first.tolist(), second.tolist()

    assert on_all(act) == [([20.0, 1.0], [[2]]), ([0.0, 1.0], [[0]]), ([10.0, 1.0], [[1]])]


def test_of_a_ring_that_was_left_nothing_comes_later():
    def act(group):
        in_a_ring(group, torch.tensor([-1.0]))
        group.pairs.drop()
        waits, received = in_a_ring(group, torch.tensor([float(group.rank)]))
        waits[0]()
        return received.item()

    assert on_all(act) == [2.0, 0.0, 1.0]


def test_what_is_no_ring_is_refused():
    def act(group):
        waits, _ = in_a_ring(group, torch.ones(1), step=2)
        with pytest.raises(RunError, match="has sent to another one"):
            waits[0]()
        alone = group.carry_out("recv", [torch.ones(1)], 0, 0)
        with pytest.raises(RunError, match="has sent 0 times and receives 1 times"):
            alone()

    on_all(act)
