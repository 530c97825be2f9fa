"""As long as Megatron's ranks divide something among themselves, torch knows the living and nobody else."""

import os

import pytest
import torch
import torch.distributed as dist

from harness.ranks import results_of
from recycle.megatron.flag.world.roles import only_the_living
from recycle.runtime.net.network import meet
from tests.megatron.flag.test_group_collectives import RANKS, Process

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
    stage = tuple(each for each in RANKS if each.stage == process.server.stage)
    among = among_group(process, process.groups[stage])
    peers = process.groups[stage]
    places = (rank, size, dist.get_rank(peers), peers.rank(), dist.get_process_group_ranks(dist.group.WORLD))
    return found, gathered, told, total.item(), among, places


def among_group(process, group):
    """The ranks that a rank hears in a group."""
    found = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, process.rank, group=group)
    return found


def numbers():
    """What torch says of a rank and of the group of all."""
    return dist.get_rank(), dist.get_world_size(), dist.get_process_group_ranks(dist.group.WORLD)


@pytest.mark.parametrize(("dead", "size"), [(0, 1), (1, 1), (3, 1), (0, 2), (3, 2)])
def test_the_ranks_are_those_of_the_living_and_afterwards_what_they_were(dead, size):
    by_rank = [server for server in RANKS for _ in range(size)]
    living = [rank for rank, server in enumerate(by_rank) if server != RANKS[dead]]

    def body(member):
        process = Process(member, (RANKS, tuple(each for each in RANKS if each != RANKS[dead])), size)
        process.hand_over()
        if process.server == RANKS[dead]:
            os._exit(0)
        process.live.recover(None)
        before, kind = numbers(), process.live.collectives.kind
        with only_the_living(process.live.network.view, by_rank, process.made, process.live.collectives):
            told = seen(process)
            whole = [
                (among_group(process, group), [each.stage for each in servers])
                for servers, group in sorted(process.whole.items(), key=lambda each: kind(each[0]))
            ]
            stage = dist.get_rank(process.groups[PIPELINE]) if process.server in PIPELINE else -1
        assert before == numbers()
        # A dead rank is played again, and every rank has its own number.
        last = living[-1]
        gathered = [torch.zeros(1) for _ in by_rank] if process.rank == last else None
        dist.gather(torch.tensor([float(process.server.stage)]), gathered, dst=last)
        if gathered is not None:
            assert [each.item() for each in gathered] == [each.stage for each in by_rank]
        # Whoever ends leaves the view, which the others may still need.
        meet(process.live.network)
        return *told, stage, whole

    heard = results_of(len(by_rank), body)
    assert sorted(heard) == living
    for number, rank in enumerate(living):
        server = by_rank[rank]
        found, gathered, told, total, among, places, stage, whole = heard[rank]
        peers = [each for each in living if by_rank[each].stage == server.stage and (each - rank) % size == 0]
        assert found == living
        assert gathered == (living if rank == living[-1] else None)
        assert told == [living[0]]
        assert total == sum(10**each for each in living)
        assert among == peers
        assert places == [number, len(living), peers.index(rank), peers.index(rank), list(range(len(living)))]
        # What stage a rank has does not depend on who lives.
        assert stage == (server.stage if server in PIPELINE else -1)
        for heard_of, stages in whole:
            if len(set(stages)) == 1:
                assert heard_of == [each for each in living if by_rank[each].stage == server.stage]
            elif len(stages) == len(RANKS):
                assert heard_of == living
            else:
                # Dead ranks of a pipeline are played by their peers.
                assert [by_rank[each].stage for each in heard_of] == [each for each in stages for _ in range(size)]


@pytest.mark.parametrize("size", [1, 2])
def test_a_death_meanwhile_ends_it_for_all_who_are_left(size):
    """With all ranks of its server; who has come through it or not does it again with the others."""
    by_rank = [server for server in RANKS for _ in range(size)]

    def body(member):
        process = Process(member, (RANKS, RANKS[:-1]), size)
        process.hand_over()
        live = process.live
        attempts = []

        def act():
            with only_the_living(live.network.view, by_rank, process.made, live.collectives):
                attempts.append(dist.get_world_size())
                found = [None] * dist.get_world_size()
                dist.all_gather_object(found, process.rank)
                if process.server == RANKS[-1]:
                    os._exit(0)
                dist.barrier()
            meet(live.network)
            return [torch.tensor(found)]

        (found,) = live.collectives.call("together", act, across=True)
        return attempts, found.tolist()

    count, left = len(by_rank), len(by_rank) - size
    assert results_of(count, body) == {rank: [[count, left], list(range(left))] for rank in range(left)}
