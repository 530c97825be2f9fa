"""Every rank that Megatron knows is played by exactly one live server, which says what it would have said."""

from types import SimpleNamespace

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from megatron.core import parallel_state, timers

from harness.flag_runs import needs_training
from recycle.control.membership.view import SOLE, ServerRank, View
from recycle.job import Server
from recycle.megatron.flag.world.roles import Roles
from tests.megatron.flag.live_servers import in_order, small_jobs


@st.composite
def casts(draw):
    """A job's servers by their rank in either order of Megatron's, and the dead ones of two views."""
    job, dead = draw(small_jobs())
    servers = draw(st.sampled_from([in_order(job), tuple(job.servers())]))
    return job, servers, draw(st.sets(st.sampled_from(dead)) if dead else st.just(set())), dead


def connected(servers, *views, rank=SOLE):
    """The roles of those who live through some views, given by their dead."""
    roles = {server: Roles(server, servers, rank) for server in servers if server not in views[-1]}
    for epoch, dead in enumerate(views):
        view = View.among([server for server in servers if server not in dead], epoch)
        for each in roles.values():
            each.connect(view)
    return roles


@given(casts())
def test_the_first_and_the_last_rank_have_one_voice_each(cast):
    job, servers, some, dead = cast
    roles = connected(servers, set(), some, dead)
    (first,) = [server for server, each in roles.items() if each.rank == 0]
    (last,) = [server for server, each in roles.items() if each.is_last]
    for rank, server in ((0, first), (-1, last)):
        own = servers[rank]
        peers = [each for each in job.servers() if each.stage == own.stage and each not in dead]
        assert server == (own if own in peers else peers[0])
    assert roles[last].rank == (0 if last == first else len(servers) - 1)
    ranks = [each.rank for each in roles.values()]
    assert len(set(ranks)) == len(ranks)
    assert all(each.rank in (0, len(servers) - 1, servers.index(server)) for server, each in roles.items())


@given(casts(), st.integers(2, 3))
def test_with_several_ranks_a_peers_rank_of_the_same_number_has_the_voice(cast, size):
    _, servers, _, dead = cast
    planes = [connected(servers, dead, rank=ServerRank(number, size)) for number in range(size)]
    ranks = [(each.rank, number, server) for number, plane in enumerate(planes) for server, each in plane.items()]
    last = len(servers) * size - 1
    assert [number for rank, number, _ in ranks if rank == 0] == [0]
    assert [number for rank, number, _ in ranks if rank == last] == [size - 1]
    assert all(rank in (0, last, servers.index(server) * size + number) for rank, number, server in ranks)
    assert [each.is_last for plane in planes[:-1] for each in plane.values()] == [False] * (size - 1) * len(planes[0])
    assert [each.is_last for each in planes[-1].values()].count(True) == 1


@needs_training
@given(casts())
def test_timers_are_logged_by_whoever_speaks_as_the_last_rank(cast):
    """Also if it speaks as the first one."""
    from megatron.training import training, utils

    _, servers, some, dead = cast
    logged = []
    for server, role in connected(servers, some, dead).items():
        rank = servers.index(server)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "get_world_size", lambda: len(servers))
            patch.setattr(dist, "get_rank", lambda _=None, own=rank: own)
            patch.setattr(timers.Timers, "get_all_timers_string", lambda *_: "times")
            patch.setattr(timers, "logger", SimpleNamespace(info=lambda _, each=role: logged.append(each.is_last)))
            for owner, names in {
                dist: ["broadcast_object_list"],
                parallel_state: ["get_data_parallel_rank", "get_expert_data_parallel_rank"],
                timers.Timers: ["log"],
                training: ["print_rank_last"],
                utils: ["print_rank_last"],
            }.items():
                for name in names:
                    patch.setattr(owner, name, getattr(owner, name))
            role.play()
            timers.Timers(0, "all").log(["evaluate"])
    assert logged == [True]


@given(casts())
def test_of_every_stage_the_first_pipelines_checkpoint_has_one_writer(cast):
    job, servers, some, dead = cast
    roles = connected(servers, some, dead)
    for stage in range(job.depth):
        pipelines = [each.pipeline for server, each in roles.items() if server.stage == stage]
        assert pipelines.count(0) == 1
        assert len(set(pipelines)) == len(pipelines)


SERVERS = (Server(0, 0), Server(1, 0), Server(0, 1), Server(1, 1))


def test_who_takes_over_from_the_last_rank_says_what_it_may_have_died_of_saying(capsys):
    roles = connected(SERVERS, ())
    for each in roles.values():
        each._print_rank_last("loss 1")
    assert capsys.readouterr().out == "loss 1\n"
    for each in roles.values():
        each.go_on()
        each._print_rank_last("loss 2")
    assert capsys.readouterr().out == "loss 2\n"
    survivors = [each for server, each in roles.items() if server != SERVERS[-1]]
    for epoch in (1, 2):
        for each in survivors:
            each.connect(View.among(SERVERS[:-1], epoch))
        # Who is about to speak as the last rank repeats the message of this moment, and does so once.
        assert capsys.readouterr().out == ("loss 2\n" if epoch == 1 else "")
    for each in survivors:
        each._print_rank_last("loss 3")
    assert capsys.readouterr().out == "loss 3\n"


def test_nobody_repeats_what_the_last_rank_has_said_while_it_lives(capsys):
    roles = connected(SERVERS, ())
    for each in roles.values():
        each._print_rank_last("loss 1")
    for server, each in roles.items():
        if server != SERVERS[0]:
            each.connect(View.among(SERVERS[1:], 1))
    assert capsys.readouterr().out == "loss 1\n"
