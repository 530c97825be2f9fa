"""One who comes back gets through initialisation by itself: every group answers at once, as if all said the same."""

import torch
import torch.distributed as dist
from torch.distributed import HashStore

from harness.local import launch
from recycle.control.membership.view import SOLE, Member, ServerRank
from recycle.control.store.tcp_store import listen, serve
from recycle.job import Server
from recycle.megatron.flag.world.stub_groups import make_stub_groups, meet_own_ranks
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.runtime.net.endpoint import Endpoint


def test_groups_of_others_who_are_not_there_answer_at_once():
    def body(process):
        groups = make_stub_groups(Server(1, 0), RankCollectives(SOLE))
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

    launch(1, body)


def test_the_ranks_of_a_server_answer_for_those_of_all_others_with_their_numbers():
    listener = listen()
    host, port = listener.getsockname()
    served = serve(listener)
    endpoint = Endpoint(host, port, "token")

    def body(process):
        own = ServerRank(process.rank, 2)
        make_stub_groups(Server(1, 0), meet_own_ranks(Member(Server(1, 0), 1), own, endpoint))
        dist.init_process_group("gloo", store=HashStore(), rank=2 + process.rank, world_size=6)
        peers, ranks = dist.new_group([process.rank, 2 + process.rank]), dist.new_group([2, 3])
        tensor = torch.tensor([1.0 + own.number])
        # The first ranks of other servers say what this server's first one says.
        dist.broadcast(tensor, 4)
        assert tensor.item() == 1.0
        tensor = torch.tensor([1.0 + own.number])
        found = [torch.zeros(1) for _ in range(6)]
        dist.all_gather(found, tensor)
        assert torch.cat(found).tolist() == [1.0, 2.0] * 3
        dist.all_reduce(tensor, group=ranks)
        assert tensor.item() == 3.0
        # Nobody need be there for what the other rank has no part in.
        if own.is_first:
            dist.all_reduce(tensor, group=peers)
            assert tensor.item() == 6.0

    launch(2, body)
    del served
