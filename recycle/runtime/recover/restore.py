"""How every member of a new view comes to hold the version that it begins with, and its shards of the optimizer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch

from recycle.control.membership.messages import Verdict
from recycle.control.membership.view import Member
from recycle.holding import units_of
from recycle.job import Job, Server
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.join.handover import receive_state, send_state
from recycle.runtime.keep.layout import held_by_all
from recycle.runtime.net.network import Network
from recycle.runtime.step.trainee import Sharded, Trainee
from recycle.state.shards import ShardMove, assign_shards, find_moves

Holders = Mapping[int, Mapping[Member, bool]]
"""Of each unit of a server: who is to hold it or does, and whether that one has the version that a view begins with."""


def find_holders(verdict: Verdict, job: Job, server: Server) -> Holders:
    """Who holds what a server holds or is to hold, as they reported before a view.

    Args:
        verdict: that begins the view.
        job: with what each server holds in it.
        server: of the view.
    """
    members = verdict.view.members
    wanted = {each: units_of(job, each.server) for each in members}
    lacking = frozenset(verdict.lacking)
    has = {each: () if str(each) in lacking else verdict.held.get(str(each), units) for each, units in wanted.items()}
    me = verdict.view.member(server)
    return {
        unit: {each: unit in has[each] for each in members if unit in wanted[each] or unit in has[each]}
        for unit in sorted({*wanted[me], *has[me]})
    }


class Restoration(NamedTuple):
    """How a view's members come to hold the version that it begins with.

    Attributes:
        step: the version.
        source: memory, of members or of keepers, or the checkpoint of this step.
        holders: who of each unit has the version itself; if nobody has, keepers have it.
        units: what the member holds in the view.
    """

    step: int
    source: Literal["memory", "checkpoint"]
    holders: Holders
    units: tuple[int, ...]


def restore_state(trainee: Trainee, member: Member, network: Network, restoration: Restoration) -> None:
    """Go back to a version, get it from a peer that has it or from keepers, or give it to those that lack it.

    Args:
        trainee: whose state it is.
        member: who this is.
        network: of the new view.
        restoration: which version, and from where.

    Raises:
        ViewBroken: somebody is gone, or a copy is not as it was.
    """
    step, source, holders, units = restoration
    versions = trainee.versions
    has = source == "memory" and any(each.get(member, False) for each in holders.values())
    if has:
        if versions.newest > step:
            versions.undo()
        assert versions.newest == step, f"{member} is at {versions.newest}, and said that it has {step}"
    if trainee.chunks is not None:
        trainee.chunks.hold(units)
    if source == "checkpoint":
        assert trainee.durable is not None, f"nobody has said that there is a checkpoint of step {step}"
        trainee.durable.load(step)
    step = versions.enter(network, step)
    assert not has or versions.newest == step, f"{member} is at {versions.newest}, and the view begins with {step}"
    if source == "checkpoint":
        return
    if not all(any(each.values()) for each in holders.values()):
        assert trainee.kept is not None, f"nobody has said that version {step} of stage {member.server.stage} is held"
        state = trainee.kept.fetch(step)
        versions.adopt(step, held_by_all(state))
        if trainee.shards is not None:
            trainee.kept.take_shards(state, range(trainee.shards.count))
        return
    found: dict[str, torch.Tensor] = {}
    # All go through their units in the same order, so that nobody waits for somebody who waits for another one.
    for unit, members in holders.items():
        for sender, receiver in _pairs(members):
            if sender == member:
                # The state is at rest here, so a peer that lacks it can have it.
                state = versions.state() if trainee.chunks is None else trainee.chunks.part(unit)
                send_state(network.link(receiver.server), network.secret, step, state)
            elif receiver == member:
                received, state = receive_state(network.link(sender.server), network.secret)
                assert received == step, f"{sender} sent version {received} instead of {step}"
                found |= state
    if any(not each.get(member, True) for each in holders.values()):
        # What it lacks may be nothing but the news.
        versions.adopt(step, found)


def _pairs(members: Mapping[Member, bool]) -> list[tuple[Member, Member]]:
    """Who sends a version to whom, of those that hold a unit."""
    lacking = [each for each, holds in members.items() if not holds]
    sources = [each for each, holds in members.items() if holds]
    return [(sources[place % len(sources)], each) for place, each in enumerate(lacking)]


def share_out(shards: Sharded, network: Network, bring: Callable[[Sequence[int]], None]) -> None:
    """Bring every shard to the peers that hold it in a view.

    All peers of the stage call it, and are at the same version. Who holds more than that keeps it, until it is sure
    that all have what they need.

    Args:
        shards: of this server.
        network: of the view.
        bring: takes shards from keepers, for those that no peer holds.

    Raises:
        ViewBroken: somebody is gone.
    """
    table = torch.zeros(shards.count, shards.count, dtype=torch.uint8)
    table[network.server.pipeline, list(shards.held)] = 1
    network.peers.sum(table)
    peers = _pipelines(network)
    held = {peer: table[peer].nonzero().flatten().tolist() for peer in peers}
    holders = assign_shards(shards.count, peers)
    lost = [shard for shard in range(shards.count) if not any(shard in each for each in held.values())]
    mine = [shard for shard in lost if holders[shard][0] == network.server.pipeline]
    if mine:
        bring(mine)
    for shard in lost:
        held[holders[shard][0]].append(shard)
    for move in find_moves(held, holders):
        state = _carry_out(move, shards, network)
        if state is not None:
            shards.take(move.shard, state)


def gather(shards: Sharded, network: Network, receiver: Server) -> Mapping[int, Mapping[str, torch.Tensor]]:
    """The shards that a server of the stage has not got itself; all peers of the stage call it.

    Args:
        shards: of this server.
        network: of a view in which they are shared out.
        receiver: who gets them.

    Returns:
        By shard; nothing, but on the receiver.

    Raises:
        ViewBroken: somebody is gone.
    """
    found = {}
    for shard, holders in enumerate(assign_shards(shards.count, _pipelines(network))):
        if receiver.pipeline not in holders:
            state = _carry_out(ShardMove(shard, holders[0], receiver.pipeline), shards, network)
            if state is not None:
                found[shard] = state
    return found


def _pipelines(network: Network) -> list[int]:
    return [each.pipeline for each in network.view.peers(network.server.stage)]


def _carry_out(move: ShardMove, shards: Sharded, network: Network) -> Mapping[str, torch.Tensor] | None:
    """This server's part in a move: gives what it has received."""
    me, stage = network.server.pipeline, network.server.stage
    if me == move.sender:
        link = network.link(Server(move.receiver, stage))
        send_state(link, network.secret, move.shard, shards.give(move.shard))
    elif me == move.receiver:
        number, state = receive_state(network.link(Server(move.sender, stage)), network.secret)
        if number != move.shard:
            raise ConnectionLost(f"shard {number} comes, where shard {move.shard} was to")
        return state
    return None
