"""As long as Megatron's ranks divide something among themselves, torch knows the living and nobody else."""

import os

import msgspec
import pytest
import torch
import torch.distributed as dist

from recycle.megatron.flag.living_world import only_the_living
from recycle.runtime.launch.local import launch
from tests.megatron.flag.test_collectives import RANKS, Process

FIRST_STAGE = tuple(each for each in RANKS if each.stage == 0)
PIPELINE = tuple(each for each in RANKS if each.pipeline == 1)


def seen(process):
    """What a rank gets from torch, in the group of all and in that of its peers."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = [None] * size
    dist.all_gather_object(found, process.rank)
    gathered = [None] * size if rank == size - 1 else None
    dist.gather_object(process.rank, gathered, dst=size - 1)
    told = [process.rank]
    dist.broadcast_object_list(told, src=0)
    total = torch.tensor([10**process.rank])
    dist.all_reduce(total)
    peers = process.groups[tuple(each for each in RANKS if each.stage == process.server.stage)]
    among = [None] * dist.get_world_size(peers)
    dist.all_gather_object(among, process.rank, group=peers)
    places = (rank, size, dist.get_rank(peers), peers.rank(), dist.get_process_group_ranks(dist.group.WORLD))
    return found, gathered, told, total.item(), among, places


@pytest.mark.parametrize("dead", [0, 1, 3])
def test_the_ranks_are_those_of_the_living_and_afterwards_what_they_were(dead):
    heard = {}
    living = [rank for rank in range(len(RANKS)) if rank != dead]

    def body(member):
        process = Process(member, (RANKS, tuple(RANKS[rank] for rank in living)))
        process.hand_over()
        if member.rank == dead:
            os._exit(0)
        process.live.recover(None)
        before = dist.get_rank(), dist.get_world_size(), dist.get_process_group_ranks(dist.group.WORLD)
        with only_the_living(process.live.network.view, RANKS, process.made, process.live.collectives):
            told = seen(process)
            stage = dist.get_rank(process.groups[PIPELINE]) if process.server in PIPELINE else -1
        assert before == (dist.get_rank(), dist.get_world_size(), dist.get_process_group_ranks(dist.group.WORLD))
        # A dead rank is played again.
        last = living[-1]
        again = [None] * len(RANKS) if member.rank == last else None
        dist.gather_object(member.rank, again, dst=last)
        assert again is None or [RANKS[rank].stage for rank in again] == [each.stage for each in RANKS]
        member.report(msgspec.msgpack.encode((*told, stage)))

    launch(len(RANKS), body, lambda rank, content: heard.update({rank: msgspec.msgpack.decode(content)}))
    assert sorted(heard) == living
    for number, rank in enumerate(living):
        found, gathered, told, total, among, places, stage = heard[rank]
        peers = [each for each in living if RANKS[each].stage == RANKS[rank].stage]
        assert found == living
        assert gathered == (living if rank == living[-1] else None)
        assert told == [living[0]]
        assert total == sum(10**each for each in living)
        assert among == peers
        assert places == [number, len(living), peers.index(rank), peers.index(rank), list(range(len(living)))]
        # What stage a rank has does not depend on who lives.
        assert stage == (RANKS[rank].stage if RANKS[rank] in PIPELINE else -1)


def test_a_death_meanwhile_ends_it_for_all_who_are_left():
    heard = {}

    def body(member):
        process = Process(member, (RANKS, RANKS[:-1]))
        process.hand_over()
        live = process.live
        attempts = []

        def act():
            with only_the_living(live.network.view, RANKS, process.made, live.collectives):
                attempts.append(dist.get_world_size())
                found = [None] * dist.get_world_size()
                dist.all_gather_object(found, process.rank)
                if member.rank == len(RANKS) - 1:
                    os._exit(0)
                dist.barrier()
            live.network.barrier()
            return [torch.tensor(found)]

        (found,) = live.collectives.call("together", act)
        member.report(msgspec.msgpack.encode((attempts, found.tolist())))

    launch(len(RANKS), body, lambda rank, content: heard.update({rank: msgspec.msgpack.decode(content)}))
    assert heard == {rank: [[4, 3], [0, 1, 2]] for rank in range(3)}
