"""What the members of a process group have for each other arrives, in parts of whatever length."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle.megatron.shared.torch_calls import Calls
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
    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(lambda rank: act(Calls(table.of(rank), rank, SIZE)), range(SIZE)))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 3), min_size=SIZE, max_size=SIZE))
def test_parts_of_unequal_length_are_gathered(lengths):
    def act(group):
        mine = torch.full((lengths[group.rank], 2), 1.0 + group.rank)
        gathered = [torch.empty(length, 2) for length in lengths]
        group.carry_out("allgather", [gathered], [mine], None)
        return gathered

    for gathered in on_all(act):
        for source, found in enumerate(gathered):
            assert torch.equal(found, torch.full((lengths[source], 2), 1.0 + source))


@pytest.mark.parametrize("name", ["send", "recv", "all_to_all_single", "alltoall_base", "_reduce_scatter_base"])
def test_what_has_no_meaning_without_a_member_is_refused(name):
    with pytest.raises(RunError, match=f"{name} is not carried through failures"):
        Calls(None, 0, SIZE).carry_out(name, [torch.ones(1)], 1, 0)
