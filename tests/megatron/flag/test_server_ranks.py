"""How the ranks of a server divide its work is what Megatron's groups say."""

from hypothesis import given
from hypothesis import strategies as st
from megatron.core.parallel_state import RankGenerator

from recycle.megatron.flag.command.server_ranks import ServerRanks


@given(*[st.integers(1, 3)] * 6)
def test_a_server_is_whole_in_every_group_that_computes_together(tensor, context, experts, split, servers, stages):
    settings = {
        "tensor_model_parallel_size": tensor,
        "context_parallel_size": context,
        "expert_model_parallel_size": experts,
        "expert_tensor_parallel_size": split,
    }
    ranks = ServerRanks.of(settings.get)
    in_stage = servers * ranks.size
    order = "tp-cp-ep-dp-pp"
    layers = RankGenerator(tp=tensor, ep=1, dp=in_stage // (tensor * context), pp=stages, cp=context, order=order)
    routed = RankGenerator(tp=split, ep=experts, dp=in_stage // (split * experts), pp=stages, cp=1, order=order)

    def of_server(place, numbers):
        return [place * ranks.size + number for number in numbers]

    for generator, kind in ((layers, "tp-cp"), (routed, "tp-ep")):
        for group in generator.get_ranks(kind):
            assert len({ranks.place(rank)[0] for rank in group}) == 1
    for generator, kind, same in ((layers, "dp-cp", ranks.same_layers), (routed, "dp", ranks.same_experts)):
        for group in generator.get_ranks(kind):
            places = dict.fromkeys(ranks.place(rank)[0] for rank in group)
            number = ranks.place(group[0])[1].number
            assert len(places) == servers
            assert group == [rank for place in places for rank in of_server(place, same(number))]
    for group in layers.get_ranks("dp"):
        for data_rank, rank in enumerate(group):
            assert data_rank % ranks.pipelines == ranks.pipeline(ranks.place(rank)[1].number)


def test_without_experts_they_are_split_as_the_other_layers():
    assert ServerRanks.of({"tensor_model_parallel_size": 2}.get) == (2, 1, 2)
    assert ServerRanks.of({"tensor_model_parallel_size": 2, "expert_model_parallel_size": 3}.get).size == 6
