"""Which servers die with a host, by the order of Megatron's ranks."""

from hypothesis import given
from hypothesis import strategies as st

from recycle.job import Server
from recycle.megatron.flag.command.planning import Shape
from recycle.megatron.flag.command.server_ranks import hosts_of, lost_stages, servers_of, unprotected

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


def test_what_cannot_be_outlived_says_why():
    assert unprotected(Shape(2, 2, 2), ()) == ""
    assert "no peers" in unprotected(Shape(1, 2, 2), ())
    assert "everybody must live" in unprotected(Shape(2, 2, 2), (Server(0, 0),))
