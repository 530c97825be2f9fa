"""Which ranks a server has, how they divide its work, and which servers die with a host."""

import re

from hypothesis import given
from hypothesis import strategies as st
from megatron.core.parallel_state import RankGenerator

from recycle.job import Server
from recycle.megatron.flag.command.planning import Shape
from recycle.megatron.flag.command.server_ranks import (
    PIPELINES_LAST,
    ServerRanks,
    hosts_of,
    lost_stages,
    servers_of,
    spread_over_hosts,
    unprotected,
)


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


SHAPES = st.builds(Shape, st.integers(1, 5), st.integers(1, 5), st.just(1))


@given(SHAPES, st.booleans(), st.integers(1, 4), st.integers(1, 9))
def test_a_host_has_the_servers_of_its_ranks(shape, pipelines_last, per_server, per_host):
    servers = servers_of(shape, pipelines_last)
    hosts = hosts_of(servers, per_server, per_host)
    assert sorted(servers) == [Server(d, s) for d in range(shape.pipelines) for s in range(shape.stages)]
    for rank in range(len(servers) * per_server):
        assert servers[rank // per_server] in hosts[rank // per_host]
    exposed, _ = lost_stages(servers, hosts)
    for stage in range(shape.stages):
        peers = {Server(pipeline, stage) for pipeline in range(shape.pipelines)}
        assert (stage in exposed) == any(peers <= host for host in hosts)


def test_by_default_peers_are_neighbours_and_a_host_may_have_all_of_them():
    shape = Shape(4, 2, 8)
    assert servers_of(shape, False)[:5] == (Server(0, 0), Server(1, 0), Server(2, 0), Server(3, 0), Server(0, 1))
    assert lost_stages(servers_of(shape, False), hosts_of(servers_of(shape, False), 1, 4))[0] == [0, 1]
    assert lost_stages(servers_of(shape, True), hosts_of(servers_of(shape, True), 1, 4))[0] == []


@given(SHAPES, st.booleans(), st.integers(1, 4), st.integers(1, 9))
def test_a_stage_is_torn_if_opposite_peers_die_together_and_another_one_lives(
    shape, pipelines_last, per_server, per_host
):
    servers = servers_of(shape, pipelines_last)
    hosts = hosts_of(servers, per_server, per_host)
    _, torn = lost_stages(servers, hosts)
    for stage in range(shape.stages):
        lost = [{server.pipeline for server in host if server.stage == stage} for host in hosts]
        assert (stage in torn) == any(
            len(each) < shape.pipelines
            and any({one, (one + shape.pipelines // 2) % shape.pipelines} <= each for one in each)
            for each in lost
        )


@given(SHAPES.filter(lambda shape: not unprotected(shape)), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_a_job_that_is_spread_as_it_is_told_outlives_any_host(shape, tensor, context, pipelines_last):
    ranks = ServerRanks.of({"tensor_model_parallel_size": tensor, "context_parallel_size": context}.get)
    said = spread_over_hosts(shape, ranks, pipelines_last)
    servers = servers_of(shape, pipelines_last or PIPELINES_LAST in said)
    (most,) = map(int, re.findall(r"at most (\d+) of its servers on a host$", said))
    assert lost_stages(servers, hosts_of(servers, ranks.size, most * ranks.size)) == ([], [])
    # Megatron refuses the option, or it changes nothing.
    if context > 1 or shape.stages == 1:
        assert PIPELINES_LAST not in said


def test_what_cannot_be_outlived_says_why():
    assert unprotected(Shape(2, 2, 2)) == ""
    assert "no peers" in unprotected(Shape(1, 2, 2))
