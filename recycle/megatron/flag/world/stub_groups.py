"""How a rank that comes back gets through Megatron's collective initialisation, which all others have long behind them.

Every call is answered at once, as if every other server had said what this one says, rank by rank. That is enough to
build model, optimizer and data sets. What they are wrong about, such as parameters, comes from a peer afterwards.
"""

from datetime import timedelta
from functools import partial

import torch

from recycle.control.membership.view import Member, ServerRank, View
from recycle.job import Server
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.torch_calls import Calls, Carrier
from recycle.runtime.net.connect import connect
from recycle.runtime.net.endpoint import Endpoint
from recycle.runtime.net.meeting_store import MeetingStore
from recycle.runtime.net.network import NetworkOptions
from recycle.runtime.net.process_groups import ReplaceableGroup, make_replaceable_groups

PATIENCE = timedelta(minutes=30)
"""Setting up may take any time, and not all ranks do the same."""


def make_stub_groups(server: Server, ranks: RankCollectives) -> list[ReplaceableGroup]:
    """Have torch make groups from now on that connect to nobody; those of at least two ranks appear in this list.

    Args:
        server: which server this is.
        ranks: its own; where it has several, they do take part, and have met.

    Raises:
        RunError: this torch makes its groups in another way.
    """

    def answer(group: ReplaceableGroup) -> None:
        answers = Carrier.by_gathering(partial(_gather, group, ranks))
        group.hand_over((server,) * group.size(), Calls(answers, group.rank(), group.size()).carry_out)

    return make_replaceable_groups(answer)


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
    store = MeetingStore(endpoint.connect(), endpoint.token, f"back/{member}/")
    options = NetworkOptions(PATIENCE, PATIENCE, endpoint.address)
    ranks = RankCollectives(rank)
    ranks.connect(connect(store, View(0, (member,)), member.server, options, rank))
    return ranks


def _gather(group: ReplaceableGroup, ranks: RankCollectives, tensor: torch.Tensor) -> list[torch.Tensor]:
    own = ranks.rank
    # Torch says who the members are when it has made the group.
    numbers = [each % own.size for each in torch.distributed.get_process_group_ranks(group)]
    if set(numbers) == {own.number}:
        return [tensor.detach().clone() for _ in numbers]
    said = ranks.carrier(tuple(dict.fromkeys(numbers))).gather(tensor)
    return [said[place].clone() for place in map(sorted(set(numbers)).index, numbers)]
