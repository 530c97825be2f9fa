"""One who comes back gets through initialisation by itself: every group answers at once, as if all said the same."""

import torch
import torch.distributed as dist
from torch.distributed import HashStore

from recycle.job import Server
from recycle.megatron.flag.alone import make_lonely_groups
from recycle.runtime.launch.local import launch


def test_groups_of_others_who_are_not_there_answer_at_once():
    heard = {}

    def body(process):
        groups = make_lonely_groups(Server(1, 0))
        dist.init_process_group("gloo", store=HashStore(), rank=2, world_size=4)
        pair, _, alone = dist.new_group([2, 3]), dist.new_group([0, 1]), dist.new_group([2])
        assert [group.size() for group in groups] == [4, 2]
        dist.barrier()
        tensor = torch.tensor([3.0])
        dist.all_reduce(tensor)
        assert tensor.item() == 12.0
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=pair)
        assert tensor.item() == 12.0
        dist.all_reduce(tensor, group=alone)
        dist.broadcast(tensor, 0)
        assert tensor.item() == 12.0
        found = [None] * 4
        dist.all_gather_object(found, {"here": 2})
        assert found == [{"here": 2}] * 4
        assert dist.get_process_group_ranks(pair) == [2, 3]
        process.report(b"done")

    launch(1, body, lambda rank, content: heard.update({rank: content}))
    assert heard == {0: b"done"}
