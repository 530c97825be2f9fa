"""How the shards of a stage's optimizer get to the peers that hold them in a view, and to who writes them down."""

from collections.abc import Callable, Mapping, Sequence

import torch

from recycle.job import Server
from recycle.runtime.errors import ConnectionLost
from recycle.runtime.join.handover import receive_state, send_state
from recycle.runtime.net.network import Network
from recycle.runtime.step.trainee import Sharded
from recycle.state.shards import ShardMove, assign_shards, find_moves


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
