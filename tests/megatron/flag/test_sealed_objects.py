"""Objects in torch's collectives come from ranks of the run, or are not read."""

import os

import pytest
import torch.distributed as dist

from harness.ranks import results_of
from recycle.megatron.flag.world.sealed_objects import seal_objects
from recycle.runtime.errors import RunError

OBJECTS = [{"a": [1, 2.5, None]}, "b" * 100_000]


class RunsCode:
    """As a pickle, it makes a folder where it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def joined(process):
    dist.init_process_group("gloo", store=process.store(), rank=process.rank, world_size=2)


def test_ranks_of_a_run_have_each_others_objects():
    def body(process):
        joined(process)
        seal_objects("the run's")
        rows, told = [None, None], [OBJECTS[0] if process.rank == 0 else None]
        dist.all_gather_object(rows, OBJECTS[process.rank])
        dist.broadcast_object_list(told, src=0)
        return rows == OBJECTS and told == OBJECTS[:1]

    assert results_of(2, body, bool) == {0: True, 1: True}


@pytest.mark.parametrize("token", [None, "another run's"])
def test_what_a_stranger_sends_in_the_place_of_a_rank_is_not_read(tmp_path, token):
    read = tmp_path / "read"

    def body(process):
        joined(process)
        is_stranger = process.rank == 1
        if not is_stranger:
            seal_objects("the run's")
        elif token is not None:
            seal_objects(token)
        told = [RunsCode(read) if is_stranger else None]
        if is_stranger:
            dist.broadcast_object_list(told, src=1)
        else:
            with pytest.raises(RunError, match="no rank of this run has sent"):
                dist.broadcast_object_list(told, src=1)
        return True

    assert results_of(2, body, bool) == {0: True, 1: True}
    assert not read.exists()
