"""How a server of several ranks comes back: its own ranks meet, and answer for all the others."""

from datetime import timedelta

import torch
from torch.distributed import PrefixStore

from recycle.control.membership.view import Member, ServerRank, View
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.torch_calls import Carrier
from recycle.runtime.net.connect import connect
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.net.meeting_store import MeetingStore
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.process_groups import ReplaceableGroup

PATIENCE = timedelta(minutes=30)
"""Setting up may take any time, and not all ranks do the same."""


def server_answers(group: ReplaceableGroup, ranks: RankCollectives) -> Carrier:
    """Answers the calls of a group, of whose members only the ranks of this server take part.

    Every other server says what this one says, rank by rank.

    Args:
        group: it.
        ranks: of this server, which have met.
    """

    def gather(tensor: torch.Tensor) -> list[torch.Tensor]:
        own = ranks.rank
        numbers = [each % own.size for each in torch.distributed.get_process_group_ranks(group)]
        if set(numbers) == {own.number}:
            return [tensor.detach().clone() for _ in numbers]
        said = ranks.carrier(tuple(dict.fromkeys(numbers))).gather(tensor)
        return [said[place].clone() for place in map(sorted(set(numbers)).index, numbers)]

    return Carrier.by_gathering(gather)


def meet_own_ranks(member: Member, rank: ServerRank, endpoint: Endpoint) -> RankCollectives:
    """Have the ranks of a server that comes back meet, apart from all others.

    Args:
        member: the life in which it comes back.
        rank: which of its ranks this is.
        endpoint: where they find each other.

    Raises:
        ConnectionLost: one of them has not come.
    """
    # Torch keeps nothing of it that Python has.
    meeting = MeetingStore(endpoint.connect(), endpoint.token)
    options = NetworkOptions(PATIENCE, PATIENCE, endpoint.address)
    ranks = RankCollectives(rank)
    store = PrefixStore(f"back/{member}", meeting)
    ranks.connect(connect(store, View(0, (member,)), member.server, options, rank))
    return ranks
